// What the ISA headers with vectors of four lanes share. Included by them only.
#pragma once

#include "simd/vector.h"

namespace oscar::simd {
namespace {

inline float reduce_add(F v) { return (v[0] + v[2]) + (v[1] + v[3]); }

// Eight running sums, lane = channel mod 8.
struct Lanes {
  F low{}, high{};
};
inline void add_to_lanes(Lanes& lanes, F v, int channel) {
  if (channel % 8 == 0) {
    lanes.low += v;
  } else {
    lanes.high += v;
  }
}
// ((0+4)+(2+6))+((1+5)+(3+7)): the codec's order.
inline float sum_lanes(const Lanes& lanes) { return reduce_add(lanes.low + lanes.high); }

// The first n lanes from memory, `fill` in the others; n in [0, kWidth].
inline F load_partial(const float* p, int n, float fill) {
  if (n == kWidth) return load(p);
  F v = broadcast(fill);
  for (int i = 0; i < n; ++i) v[i] = p[i];
  return v;
}
inline void store_partial(float* p, F v, int n) {
  if (n == kWidth) return store(p, v);
  for (int i = 0; i < n; ++i) p[i] = v[i];
}

// Vector v of sixteen lanes that repeat n floats; n is 2, 4, 8 or 16.
template <int n>
inline F load_repeated(const float* p, int v) {
  if constexpr (n == 2) return F{p[0], p[1], p[0], p[1]};
  return load(p + v * kWidth % n);
}
inline F reverse(F v) { return __builtin_shufflevector(v, v, 3, 2, 1, 0); }

// Adds up what blocks of 1, 2, 4 and 8 pairs hold of the same degree, into `one`: sixteen lanes
// each, lane 2n·(degree / 2) + 2·pair + degree % 2 for n pairs.
inline void fold_levels(F (&one)[4], F (&two)[4], F (&four)[4], const F (&eight)[4]) {
  for (int i = 0; i < 2; ++i) four[i] += eight[i] + eight[2 + i];
  for (int i = 0; i < 2; ++i) two[i] += four[2 * i] + four[2 * i + 1];
  for (int i = 0; i < 2; ++i) {
    const F a = two[2 * i], b = two[2 * i + 1];
    one[i] += __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
  }
}

// Lane i: words[i / n]; n is a power of two up to 8.
template <int n>
inline U repeat_words(const std::uint32_t* words) {
  return n == 2 ? U{words[0], words[0], words[1], words[1]} : broadcast_bits(words[0]);
}

}  // namespace
}  // namespace oscar::simd

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

// Even lanes p[0], odd ones p[1].
inline F broadcast_pair(const float* p) { return F{p[0], p[1], p[0], p[1]}; }

// Lane i: words[i / n]; n is a power of two up to 8.
template <int n>
inline U repeat_words(const std::uint32_t* words) {
  return n == 2 ? U{words[0], words[0], words[1], words[1]} : broadcast_bits(words[0]);
}

}  // namespace
}  // namespace oscar::simd

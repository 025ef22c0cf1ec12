// The vector types of one translation unit and the operations that every ISA spells the same way.
// Included by the ISA headers only, after they define OSCAR_SIMD_WIDTH.
//
// A translation unit includes exactly one ISA header. Everything lies in an unnamed namespace: code
// compiled with ISA flags must leave no symbol that the linker could merge into a baseline object.
#pragma once

#include <cstdint>

namespace oscar::simd {
namespace {

constexpr int kWidth = OSCAR_SIMD_WIDTH;  // floats per vector
constexpr int kVectorBytes = 4 * kWidth;

// GCC/Clang vector types: + − * / & | << >> and comparisons act per lane; shifts of U are logical.
typedef float F __attribute__((vector_size(kVectorBytes)));
typedef std::int32_t I __attribute__((vector_size(kVectorBytes)));
typedef std::uint32_t U __attribute__((vector_size(kVectorBytes)));
typedef float F8 __attribute__((vector_size(32)));  // the eight lanes of the codec's sums

typedef float UnalignedF __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));

inline F load(const float* p) { return *reinterpret_cast<const UnalignedF*>(p); }
inline void store(float* p, F v) { *reinterpret_cast<UnalignedF*>(p) = v; }
inline F broadcast(float x) { return F{} + x; }
inline U broadcast_bits(std::uint32_t x) { return U{} + x; }
inline U bits_of(F v) { return reinterpret_cast<U>(v); }
inline F from_bits(U v) { return reinterpret_cast<F>(v); }
inline U magnitude_bits(F v) { return bits_of(v) & 0x7fffffffu; }

// ((0+4)+(2+6))+((1+5)+(3+7)): the codec's order.
inline float sum_lanes(F8 v) {
  typedef float F4 __attribute__((vector_size(16)));
  const F4 s =
      __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
  return (s[0] + s[2]) + (s[1] + s[3]);
}

// Adds 1 to the lanes with v ≤ threshold; both below 2³¹.
inline void count_at_most(U& counts, U v, U threshold) {
  counts -= reinterpret_cast<U>(reinterpret_cast<I>(v) <= reinterpret_cast<I>(threshold));
}

inline U lane_index() {
  U v{};
  for (int i = 0; i < kWidth; ++i) v[i] = static_cast<std::uint32_t>(i);
  return v;
}

// Half to even, |v| < 2²².
inline F round_to_integer(F v) {
  const F magic = broadcast(12582912.0f);
  return (v + magic) - magic;
}

inline std::uint32_t load_word(const std::uint8_t* p) {
  std::uint32_t word;
  __builtin_memcpy(&word, p, sizeof word);
  return word;
}

inline std::uint32_t load_half(const std::uint8_t* p) {
  std::uint16_t half;
  __builtin_memcpy(&half, p, sizeof half);
  return half;
}

}  // namespace
}  // namespace oscar::simd

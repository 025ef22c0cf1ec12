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

typedef float UnalignedF __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));

typedef std::uint32_t UnalignedU __attribute__((vector_size(kVectorBytes), aligned(1), may_alias));

inline F load(const float* p) { return *reinterpret_cast<const UnalignedF*>(p); }
inline void store(float* p, F v) { *reinterpret_cast<UnalignedF*>(p) = v; }
inline U load_words(const std::uint8_t* p) { return *reinterpret_cast<const UnalignedU*>(p); }
inline void store_words(std::uint8_t* p, U v) { *reinterpret_cast<UnalignedU*>(p) = v; }
inline F broadcast(float x) { return F{} + x; }
inline U broadcast_bits(std::uint32_t x) { return U{} + x; }
inline U bits_of(F v) { return reinterpret_cast<U>(v); }
inline F from_bits(U v) { return reinterpret_cast<F>(v); }
inline U magnitude_bits(F v) { return bits_of(v) & 0x7fffffffu; }

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

inline F to_float(I v) { return __builtin_convertvector(v, F); }

template <typename T>
inline T load_bytes(const std::uint8_t* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}

// The float at p in every lane, bit by bit: a load alone, where broadcast(*p) adds it to zero.
inline F load_broadcast(const float* p) {
  return from_bits(
      broadcast_bits(load_bytes<std::uint32_t>(reinterpret_cast<const std::uint8_t*>(p))));
}

}  // namespace
}  // namespace oscar::simd

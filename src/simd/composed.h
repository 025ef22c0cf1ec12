// What sets without an instruction of their own for it make of other operations. Included by the
// ISA headers only.
#pragma once

#include "simd/vector.h"

namespace oscar::simd {
namespace {

// The low bytes of the lanes; each set has its own.
inline void store_bytes(std::uint8_t* p, U v);

// v·2^n for whole n that leave it a normal number.
inline F times_power_of_two(F v, F n) {
  const I exponent = __builtin_convertvector(n, I) + 127;
  return v * from_bits(reinterpret_cast<U>(exponent) << 23);
}

// high[t], low[t]: bits [8, 16) and [0, 8) of 64 words.
inline void split_bytes(const U (&words)[64 / kWidth], std::uint8_t* high, std::uint8_t* low) {
  for (int v = 0; v < 64 / kWidth; ++v) {
    store_bytes(high + v * kWidth, words[v] >> 8);
    store_bytes(low + v * kWidth, words[v]);
  }
}

}  // namespace
}  // namespace oscar::simd

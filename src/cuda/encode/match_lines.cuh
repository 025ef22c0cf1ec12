// Comparisons of pairs of float16 as products.
#pragma once

#include <cstdint>

namespace oscar::cuda::encode {

inline constexpr uint32_t kPositiveInfinity = 0x7c00, kNegativeInfinity = 0xfc00;  // float16

// A comparison as slope (low half) and offset (high half) of a saturated product: 1.0 where it
// holds, else 0, for all float16 x. The floating-point pipe does it at twice the rate of a compare.
//
// |x| ≤ key, the low 15 bits, for positive keys from 2^−5: 1 + (key − |x|) / ulp.
__device__ __forceinline__ uint32_t at_most_line(uint32_t key) {
  const uint32_t slope = (~key & 0x7c00u) + 0xa400u, offset = ((key & 0x3ffu) | 0x6400u) + 1;
  return __byte_perm(slope, offset, 0x5410);
}
// x ≥ limit, for magnitudes from 2^−4 and infinity: 1 + (x − limit) / (limit − its predecessor).
__device__ __forceinline__ uint32_t at_least_line(uint32_t limit) {
  const uint32_t mantissa = limit & 0x3ffu, exponent = limit & 0x7c00u;
  const bool is_negative = limit & 0x8000u;
  // Below a power of two the step is half as long.
  const bool is_finer = !is_negative && mantissa == 0;
  const uint32_t slope = (is_finer ? 0xa400u : 0xa000u) - exponent;
  // 1 − limit / step: 1025 + mantissa, −(1023 + mantissa) or −2047.
  const uint32_t offset = is_negative ? 0x6401u + mantissa
                          : is_finer  ? 0xe7ffu
                                      : 0xe3ffu + mantissa;
  const uint32_t line = __byte_perm(slope, offset, 0x5410);
  return exponent != kPositiveInfinity ? line : is_negative ? 0x3c000000u : 0u;
}
// Both halves of a word one half of `pair`.
__device__ __forceinline__ uint32_t twice_low(uint32_t pair) {
  return __byte_perm(pair, 0, 0x1010);
}
__device__ __forceinline__ uint32_t twice_high(uint32_t pair) {
  return __byte_perm(pair, 0, 0x3232);
}

}  // namespace oscar::cuda::encode

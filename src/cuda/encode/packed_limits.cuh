// Where the codes of a row in float16 change, and comparisons with such limits as products.
#pragma once

#include "cuda/encode/row_codes.cuh"

namespace oscar::cuda::encode {

inline constexpr uint32_t kPositiveInfinity = 0x7c00, kNegativeInfinity = 0xfc00;  // float16

// The smallest float16 whose code is at least k (1, 2 or 3), as bits, for a row without a clip. A
// level is fl(fl(y / scale) + zero); scale: at least 2^7 and of eight bits, zero: 0 to 3, not 0.5
// or 2.5, of eight bits. The edge (k − 0.5 − zero)·scale is 0 or at least 2^−9·scale; the level's
// rounding moves it by 2^−22·scale at most, less than half a step of float16 there.
__device__ __forceinline__ uint32_t code_limit(const RowScale& s, int k) {
  const float level = static_cast<float>(k) - 0.5f;
  float edge = __fmul_rn(__fsub_rn(level, s.zero), s.scale);
  // Zero's own edge: fl(q + 1.5) is 1.5, which rounds to 2, from q = −2^−24 on.
  const bool is_zero = edge == 0;
  if (is_zero) edge = __fmul_rn(s.scale, -0x1p-24f);
  const uint32_t key = ptx::f16_from_float(edge);
  const float reached = __fadd_rn(quotient(ptx::float_from_f16(key), s.scale, s.inverse), s.zero);
  const bool is_reached = is_zero || reached > level || (k == 2 && reached == level);
  const uint32_t next = key & 0x8000u ? key - 1 : key + 1;
  return is_reached ? key : next;
}

// The same with the clip at ±threshold.
__device__ __forceinline__ uint32_t clipped_limit(const RowScale& s, int k, float threshold) {
  const uint32_t key = code_limit(s, k);
  const float limit = ptx::float_from_f16(key);
  return threshold < limit ? kPositiveInfinity : -threshold >= limit ? kNegativeInfinity : key;
}

// The code of y in float32 by one saturated product: round(sat(slope·y + offset)·span) + first, the
// code in the low bits (`first` has kMagic added). It differs from the pipeline's only within 2^−20
// of a limit between codes: no divisions, no clip.
struct LevelLine {
  float slope, offset, span, first;
};
// s and threshold in the units of y.
__device__ __forceinline__ LevelLine level_line(const RowScale& s, float threshold) {
  // Without a clip the threshold is beyond what a code can tell.
  const float bound = fminf(threshold, __fmul_rn(s.scale, 1024.0f));
  const float low = static_cast<float>(clamped_code(shifted_level(s, -bound), 3));
  const float high = static_cast<float>(clamped_code(shifted_level(s, bound), 3));
  const float span = high - low;
  const float part = span == 3.0f ? 1.0f / 3.0f : span == 2.0f ? 0.5f : span;  // 1 / span; 0 of 0
  return {s.inverse * part, (s.zero - low) * part, span, low + kMagic};
}

// A comparison as slope (low half) and offset (high half) of a saturated product: 1.0 where it
// holds, else 0, for all float16 x. The floating-point pipe does it at twice the rate of a compare.
//
// |x| ≤ key, for positive keys from 2^−5 (smaller ones stand for it): 1 + (key − |x|) / ulp.
__device__ __forceinline__ uint32_t at_most_line(uint32_t key) {
  const uint32_t k = max(key, 0x2800u);
  return (0x12000u - (k & 0x7c00u)) | (0x6401u + (k & 0x3ffu)) << 16;
}
// x ≥ limit, for magnitudes from 2^−4 and infinity: 1 + (x − limit) / (limit − its predecessor).
__device__ __forceinline__ uint32_t at_least_line(uint32_t limit) {
  const uint32_t magnitude = limit & 0x7fffu, mantissa = magnitude & 0x3ffu;
  if (magnitude >= kPositiveInfinity) return limit >= 0x8000u ? 0x3c000000u : 0u;
  const bool is_negative = limit >= 0x8000u;
  // Below a power of two the step is half as long.
  const bool is_finer = !is_negative && mantissa == 0;
  const uint32_t slope = 0xa000u - (magnitude & 0x7c00u) + (is_finer ? 0x400u : 0u);
  // 1 − limit / step: 1025 + mantissa, −(1023 + mantissa) or −2047.
  const uint32_t offset = is_negative ? 0x6401u + mantissa
                          : is_finer  ? 0xe7ffu
                                      : 0xe400u + mantissa - 1;
  return slope | offset << 16;
}
// Both halves of a word one half of `pair`.
__device__ __forceinline__ uint32_t twice_low(uint32_t pair) {
  return __byte_perm(pair, 0, 0x1010);
}
__device__ __forceinline__ uint32_t twice_high(uint32_t pair) {
  return __byte_perm(pair, 0, 0x3232);
}

}  // namespace oscar::cuda::encode

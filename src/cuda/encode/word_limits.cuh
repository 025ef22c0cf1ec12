// Where the codes of a row of BF16 change, as BF16.
#pragma once

#include "cuda/encode/match_lines.cuh"
#include "cuda/encode/row_codes.cuh"

namespace oscar::cuda::encode {

__device__ __forceinline__ float float_from_bf16_bits(uint32_t bits) {
  return __uint_as_float(bits << 16);
}

// The smallest BF16 whose code is at least k (1, 2 or 3), as bits, for a row clipped at ±threshold;
// infinity where there is none. A level is fl(fl(y / scale) + zero); scale: ordinary
// (row_codes.cuh) and of eight bits, zero: 0 to 3, not 0.5 or 2.5, of eight bits. The edge (k − 0.5
// − zero)·scale is exact, and 0 or at least 2^−9·scale; the level's rounding moves it by
// 2^−22·scale at most, less than half a step of BF16 there.
__device__ __forceinline__ uint32_t word_limit(const RowScale& s, int k, float threshold) {
  const float level = static_cast<float>(k) - 0.5f;
  float edge = __fmul_rn(__fsub_rn(level, s.zero), s.scale);
  // Zero's own edge: fl(q + 1.5) is 1.5, which rounds to 2, from q = −2^−24 on.
  const bool is_zero = edge == 0;
  if (is_zero) edge = __fmul_rn(s.scale, -0x1p-24f);
  uint32_t key = (__float_as_uint(edge) + 0x8000u) >> 16;
  const float reached = __fadd_rn(quotient(float_from_bf16_bits(key), s.scale, s.inverse), s.zero);
  const bool is_reached = is_zero || reached > level || (k == 2 && reached == level);
  if (!is_reached) key += key & 0x8000u ? ~0u : 1u;
  const float limit = float_from_bf16_bits(key);
  return threshold < limit ? kPositiveInfinity : -threshold >= limit ? kNegativeInfinity : key;
}

}  // namespace oscar::cuda::encode

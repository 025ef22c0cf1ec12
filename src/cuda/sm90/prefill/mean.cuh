// The key mean as a logit term, as in decode/mean.cuh: a constant table of cosines and sines of a
// page's tokens times coefficients into which the page's position is folded, both as float16 pairs
// high + low. What both low halves would give is left out: 2^−22 of the term.
#pragma once

#include "cuda/sm90/prefill/softmax.cuh"

namespace oscar::cuda::sm90 {

// Shared memory of the term, of the whole block; no barrier.
template <class C>
__device__ __forceinline__ void stage_mean(const PrefillRows& rows, std::uint8_t* shared,
                                           int num_rows) {
  const MeanTerm& mean = rows.params.mean;
  const int steps = (mean.num_pairs + 7) / 8;
  const float2* tile = reinterpret_cast<const float2*>(mean.tile);
  for (int i = threadIdx.x; i < steps * kPageTokens * 8; i += C::kThreads) {
    const int column = i / 8 % kPageTokens, step = i / (8 * kPageTokens), pair = 8 * step + i % 8;
    const float2 x = pair < mean.num_pairs ? tile[token_of_column(column) * mean.num_pairs + pair]
                                           : float2{0, 0};
    const uint32_t high = ptx::pack_f16(x.x, x.y);
    const uint32_t low = ptx::pack_f16(x.x - ptx::float_from_f16(high & 0xffff),
                                       x.y - ptx::float_from_f16(high >> 16));
    // Matrices of eight columns and four pairs.
    std::uint8_t* to = shared + C::kMeanTable + 2 * step * C::kMeanPartBytes + column / 8 * 256 +
                       i % 8 / 4 * 128 + column % 8 * 16 + i % 4 * 4;
    *reinterpret_cast<uint32_t*>(to) = high;
    *reinterpret_cast<uint32_t*>(to + C::kMeanPartBytes) = low;
  }
  float* coefficients = reinterpret_cast<float*>(shared + C::kMeanCoefficients);
  const int count = 2 * mean.num_pairs + 1;
  for (int i = threadIdx.x; i < C::kRows * C::kMeanStride; i += C::kThreads) {
    const int row = i / C::kMeanStride, at = i % C::kMeanStride;
    const int k = at == 2 * kHopperPrefillMeanPairs ? count - 1 : at < count - 1 ? at : -1;
    float value = 0;
    if (row < num_rows && k >= 0) {
      value =
          mean.coefficients[(rows.token(row) * rows.params.num_q_heads + rows.q_head(row)) * count +
                            k];
    }
    coefficients[i] = value * (rows.params.scale * kLog2E);
  }
}

// The constant of a row, in log2 units.
template <class C>
__device__ __forceinline__ float mean_constant(const std::uint8_t* shared, int row) {
  return reinterpret_cast<const float*>(
      shared + C::kMeanCoefficients)[row * C::kMeanStride + 2 * kHopperPrefillMeanPairs];
}

// Adds the term, all but its constant. rows: of the warp's first row; turns: shared address of the
// page's turns.
template <class C>
__device__ __forceinline__ void add_mean(TileLogits& logits, const std::uint8_t* shared,
                                         int first_row, int num_pairs, uint32_t turns) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const float* rows = reinterpret_cast<const float*>(shared + C::kMeanCoefficients) +
                      (first_row + g) * C::kMeanStride;
  const uint32_t table = ptx::shared_address(shared + C::kMeanTable);
#pragma unroll 1
  for (int step = 0; 8 * step < num_pairs; ++step) {
    uint32_t high[4], low[4];  // operand A: rows g and g + 8 of pair t, then of pair t + 4
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int pair = 8 * step + 4 * (k / 2) + t;
      // Pairs beyond the last have no coefficients.
      const uint2 x = ptx::load_shared_8(turns + 8 * smaller(pair, num_pairs - 1));
      const float2 turn = {__uint_as_float(x.x), __uint_as_float(x.y)};
      const float2 c =
          *reinterpret_cast<const float2*>(rows + k % 2 * 8 * C::kMeanStride + 2 * pair);
      const float2 turned = {c.x * turn.x + c.y * turn.y, c.y * turn.x - c.x * turn.y};
      high[k] = ptx::pack_f16(turned.x, turned.y);
      low[k] = ptx::pack_f16(turned.x - ptx::float_from_f16(high[k] & 0xffff),
                             turned.y - ptx::float_from_f16(high[k] >> 16));
    }
    const uint64_t b = ptx::wgmma_operand(table + 2 * step * C::kMeanPartBytes, 128, 256);
    const uint4 a = {high[0], high[1], high[2], high[3]};
    ptx::wgmma_fence();
    ptx::wgmma_f16_n64(logits, a, b, false);
    ptx::wgmma_f16_n64(logits, {low[0], low[1], low[2], low[3]}, b, false);
    ptx::wgmma_f16_n64(logits, a, b + (C::kMeanPartBytes >> 4), false);
    ptx::wgmma_commit();
    ptx::wgmma_wait();
  }
}

}  // namespace oscar::cuda::sm90

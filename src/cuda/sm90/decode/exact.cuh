// A unit of exact rows: eight tokens of BF16 keys, then values, in shared memory.
#pragma once

#include "cuda/ptx/memory.h"
#include "cuda/ptx/mma.h"
#include "cuda/sm90/decode/query.cuh"
#include "cuda/sm90/decode/warp_state.cuh"

namespace oscar::cuda::sm90 {

// Query row of matrix column g, in the order that WarpState keeps heads.
template <class C>
__device__ __forceinline__ int row_of_column(int column) {
  return (column >> 1) + (C::kHeadTiles == 1 ? 0 : 4 * (column & 1));
}

// logits[head tile] = q·k of token g, unscaled. rows: shared address of the unit's keys.
template <class C>
__device__ __forceinline__ void exact_logits(float (&logits)[C::kHeadTiles], uint32_t rows,
                                             const QueryStore<C>& store, int lane) {
  const int g = lane >> 2, t = lane & 3;
  const uint32_t key = rows + g * C::kExactRowBytes + t * 16;
  const uint32_t query =
      ptx::shared_address(store.rows) + row_of_column<C>(g) * C::kQueryRowBytes + t * 16;
  float c[4] = {};
#pragma unroll
  for (int i = 0; i < C::kHeadDim / 32; ++i) {
    // The same 8 channels of key and query: their order inside the instruction does not matter.
    const uint4 k = ptx::load_shared_16(key + i * 64), q = ptx::load_shared_16(query + i * 64);
    ptx::mma_bf16(c, {k.x, 0, k.y, 0}, q.x, q.y);
    ptx::mma_bf16(c, {k.z, 0, k.w, 0}, q.z, q.w);
  }
  logits[0] = c[0];
  if constexpr (C::kHeadTiles == 2) logits[1] = c[1];
}

// Eight channels of tokens 2t and 2t + 1 in the order that trellis codes give outputs
// (DecodeConfig::value_channel): those of kTiles matrix tiles.
template <class C>
struct ExactChannels {
  static constexpr int kTiles = C::kHeadDim == 64 ? 2 : 4;
  uint4 even, odd;  // tokens

  // m: the first of the tiles. rows: shared address.
  __device__ __forceinline__ void load(uint32_t rows, int m, int lane) {
    const int channel = C::value_channel(16 * m + (lane >> 2)) & ~7;
    const uint32_t address = rows + 2 * (lane & 3) * C::kExactRowBytes + 2 * channel;
    even = ptx::load_shared_16(address);
    odd = ptx::load_shared_16(address + C::kExactRowBytes);
  }
  // Both tokens of row g + 8·half of tile m.
  __device__ __forceinline__ uint32_t rows_of(int m, int half, int lane) const {
    const int channel = C::kHeadDim == 64 ? 4 * half + 2 * (m % 2) : 2 * (m % 4) + half;
    const bool is_upper = C::kHeadDim == 64 ? (lane >> 2) & 1 : half;
    const uint32_t a[4] = {even.x, even.y, even.z, even.w}, b[4] = {odd.x, odd.y, odd.z, odd.w};
    return __byte_perm(a[channel / 2], b[channel / 2], is_upper ? 0x7632 : 0x5410);
  }
};

// out += weights·values. Weights as BF16 pairs high + low, so that they keep 16 bits. rows: shared
// address of the unit's values.
template <class C>
__device__ __forceinline__ void accumulate_exact(WarpState<C>& state,
                                                 const float (&weights)[C::kHeadTiles],
                                                 uint32_t rows, int lane) {
  uint32_t high[C::kHeadTiles], b0, b1;
  float rest[C::kHeadTiles];
#pragma unroll
  for (int i = 0; i < C::kHeadTiles; ++i) {
    state.sum[i] += weights[i];
    high[i] = ptx::pack_bf16(weights[i], 0.0f);
    rest[i] = weights[i] - ptx::low_bf16(high[i]);
  }
  if constexpr (C::kHeadTiles == 1) {
    b0 = ptx::transpose_8x8(ptx::pack_bf16(weights[0], rest[0]));
    b1 = 0;
  } else {
    b0 = ptx::transpose_8x8(ptx::pack_bf16(weights[0], weights[1]));
    b1 = ptx::transpose_8x8(ptx::pack_bf16(rest[0], rest[1]));
  }
  [[maybe_unused]] const uint32_t address =
      rows + (lane & 7) * C::kExactRowBytes + (lane >> 3) * 16;
  float chain[4] = {};
  [[maybe_unused]] uint4 v = {};
  [[maybe_unused]] ExactChannels<C> channels;
#pragma unroll
  for (int m = 0; m < C::kValueTiles; ++m) {
    static_assert(C::kValueTiles % 2 == 0);
    uint32_t low, upper;
    if constexpr (C::kTrellis) {
      if (m % ExactChannels<C>::kTiles == 0) channels.load(rows, m, lane);
      low = channels.rows_of(m, 0, lane);
      upper = channels.rows_of(m, 1, lane);
    } else {
      if (m % 2 == 0) v = ptx::load_matrix_x4_transposed(address + m * 32);
      low = m % 2 ? v.z : v.x;
      upper = m % 2 ? v.w : v.y;
    }
    float product[4] = {};
    ptx::mma_bf16(product, {low, upper, low, upper}, b0, b1);
    const int position = m % C::kCodesPerByte;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float unit = 0x1p-24f * static_cast<float>(1 << (C::kValueStep * position));
      chain[k] = product[k] * unit + (position ? chain[k] : 0.0f);
      state.out[m][k] += chain[k];
    }
  }
}

}  // namespace oscar::cuda::sm90

// Exact copies of keys as they came (EncodeParams::raw_key_copies).
#pragma once

#include "cuda/encode/fragment_rows.cuh"

namespace oscar::cuda::encode {

// The row of a copy; slot: block·rows_per_block + row.
__device__ __forceinline__ bf16_t* copy_at(const EncodeParams& p, std::int64_t slot, int head,
                                           int side_index, int head_dim) {
  // 2^32 rows would not fit any card.
  const auto index = static_cast<uint32_t>(slot);
  const auto rows_per_block = static_cast<uint32_t>(p.rows_per_block);
  const std::int64_t block = index / rows_per_block, row = index % rows_per_block;
  const std::int64_t plane = (block * p.num_kv_heads + head) * 2 + side_index;
  return p.copies + (plane * p.rows_per_block + row) * head_dim;
}

__device__ __forceinline__ bool copies_raw_keys(const EncodeParams& params, int side_index) {
  return params.copies != nullptr && params.raw_key_copies && side_index == 0;
}

// A pair of BF16, NaN and infinity as 0.
__device__ __forceinline__ uint32_t finite_pair(uint32_t pair) {
  const uint32_t low = (pair & 0x7f80u) == 0x7f80u ? 0u : pair & 0xffffu;
  const uint32_t high = (pair & 0x7f800000u) == 0x7f800000u ? 0u : pair & 0xffff0000u;
  return low | high;
}

// A lane's words of row g; all lanes of a warp take part.
template <int kHeadDim>
__device__ __forceinline__ void copy_raw_key(const TileJob& job, const RawRow<kHeadDim>& raw,
                                             int token) {
  const std::int64_t slot = token < 0 ? -1 : job.params.copy_slots[token];
  if (slot < 0) return;
  uint32_t* out =
      reinterpret_cast<uint32_t*>(copy_at(job.params, slot, job.head, job.side_index, kHeadDim)) +
      (threadIdx.x & 3);
#pragma unroll
  for (int n = 0; n < kHeadDim / 8; ++n) out[4 * n] = finite_pair(raw.high[n]);
}

}  // namespace oscar::cuda::encode

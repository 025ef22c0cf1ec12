// Where a warp's rows go and what rules they follow, for the fragment kernels.
#pragma once

#include "cuda/encode/copy_keys.cuh"
#include "cuda/encode/row_store.cuh"

namespace oscar::cuda::encode {

// The job of a block of grids (blocks, heads, sides).
__device__ __forceinline__ TileJob job_of_block(const EncodeParams& params) {
  const int side = static_cast<int>(blockIdx.z);
  return {params, params.sides[side], static_cast<int>(blockIdx.y), side, 0, 0};
}

// Of rotated copies: keys that are copied as they came have none (copy_keys.cuh).
template <int kHalves>
__device__ __forceinline__ void copy_slots_of(const EncodeParams& params, int side_index,
                                              const int (&tokens)[kHalves],
                                              std::int64_t (&slots)[kHalves]) {
  const bool has_none = params.copies == nullptr || copies_raw_keys(params, side_index);
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    slots[h] = has_none || tokens[h] < 0 ? -1 : params.copy_slots[tokens[h]];
  }
}

// Rotated rows as BF16 into the exact copies; NaN becomes 0, and in a row that is not finite its
// neighbours may too.
template <int kHeadDim, int kHalves>
__device__ __forceinline__ void copy_rows(const RowFragments<kHeadDim / 8, kHalves>& v,
                                          const TileJob& job,
                                          const std::int64_t (&slots)[kHalves]) {
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    if (slots[h] < 0) continue;
    uint32_t* out = reinterpret_cast<uint32_t*>(
                        copy_at(job.params, slots[h], job.head, job.side_index, kHeadDim)) +
                    (threadIdx.x & 3);
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      const float x = v[n][2 * h], y = v[n][2 * h + 1];
      out[4 * n] = ptx::pack_bf16(isnan(x) ? 0.0f : x, isnan(y) ? 0.0f : y);
    }
  }
}

template <int kHalves>
__device__ __forceinline__ RowPlaces<kHalves> places_of(const TileJob& job,
                                                        const std::int64_t (&slots)[kHalves]) {
  const int lane = threadIdx.x & 31, g = lane >> 2;
  RowPlaces<kHalves> places;
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    places.planes[h] = plane_of(job, slots[h]);
    places.tokens[h] = slots[h] < 0 ? 0 : static_cast<int>(slots[h] & (kPageTokens - 1));
  }
  const std::int64_t first = __shfl_sync(~0u, slots[0], 0);
  bool is_in_place = first >= 0 && (first & (kSlab - 1)) == 0;
#pragma unroll
  for (int h = 0; h < kHalves; ++h) is_in_place = is_in_place && slots[h] == first + g + 8 * h;
  places.is_slab = __all_sync(~0u, is_in_place);
  return places;
}

// trellis: known when compiled.
__device__ __forceinline__ RowRules rules_of(const TileJob& job, bool trellis) {
  const DevicePlane& plane = job.side.plane;
  return {plane.bits,   plane.head_dim,     plane.group_size,
          plane.affine, job.side.scale_fit, job.side.clip_ratio[job.head],
          trellis};
}

template <int kHalves>
__device__ __forceinline__ bool any_copy(const std::int64_t (&slots)[kHalves]) {
  return __any_sync(~0u, slots[0] >= 0 || slots[kHalves - 1] >= 0);
}

}  // namespace oscar::cuda::encode

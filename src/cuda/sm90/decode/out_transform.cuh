// Outputs of a finished item from the values' rotated basis to the raw one, where the caller asks:
// the rows that this block has just written times the inverse's image, on tensor cores.
#pragma once

#include "cuda/encode/transform_image.h"
#include "cuda/ptx/mma.h"
#include "cuda/ptx/scalar.h"
#include "cuda/sm90/decode/schedule.cuh"

namespace oscar::cuda::sm90 {

// By the whole block, after all rows of the item are written. Not inlined: the loop over pages
// needs every register.
template <class C>
__device__ __noinline__ void transform_item(const AttendParams& params, const Segment& segment) {
  static_assert(C::kHeadDim <= 128 && C::kRows <= 8);
  constexpr int kCount = 2;  // column tiles of a warp
  const int warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
  __syncthreads();
  const bool is_used = warp < C::kHeadDim / 16;
  const RowPlace place = RowPlace::of(params, segment, C::kRows, smaller(g, C::kRows - 1));
  bf16_t* row = nullptr;
  if (is_used && g < C::kRows && place.is_valid) {
    row = params.out + place.token * params.out_token_stride + place.q_head * C::kHeadDim;
  }
  float sums[kCount][4] = {};
  float unit = 1.0f;
  if (is_used) {
    // Two channels of the row, past the first-level cache: other threads of the block wrote it.
    const auto pair = [&](int n) {
      return row == nullptr ? 0u : __ldcg(reinterpret_cast<const uint32_t*>(row) + 4 * n + t);
    };
    const std::uint8_t* image = static_cast<const std::uint8_t*>(params.out_image) +
                                segment.head * transform_head_bytes(C::kHeadDim);
    const TransformHead head = *reinterpret_cast<const TransformHead*>(image);
    unit = head.unit;
    const uint4* operands = reinterpret_cast<const uint4*>(image + sizeof(TransformHead)) +
                            warp * 32 + (threadIdx.x & 31);
    constexpr int kSteps = C::kHeadDim / 16;
#pragma unroll 1
    for (int part = 0; part < head.num_parts; ++part, operands += kSteps * kSteps * 32) {
#pragma unroll 4
      for (int step = 0; step < kSteps; ++step) {
        const uint4 a = {pair(2 * step), 0, pair(2 * step + 1), 0};
        const uint4 b = __ldg(operands + step * kSteps * 32);
        ptx::mma_bf16(sums[0], a, b.x, b.y);
        ptx::mma_bf16(sums[1], a, b.z, b.w);
      }
    }
  }
  __syncthreads();
  if (row == nullptr) return;
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
    reinterpret_cast<uint32_t*>(row)[4 * (warp * kCount + n) + t] =
        ptx::pack_bf16(sums[n][0] * unit, sums[n][1] * unit);
  }
}

}  // namespace oscar::cuda::sm90

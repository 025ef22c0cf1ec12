// Rows times a transform's image by the matrix instructions of four warps: the image is read from
// shared memory once for sixty-four rows, not once for sixteen.
#pragma once

#include "cuda/encode/packed_kernel.cuh"
#include "cuda/ptx/bulk_copy.h"
#include "cuda/ptx/wgmma.h"

namespace oscar::cuda::sm90 {

struct GroupProduct {
  static constexpr bool kTogether = true;
  static constexpr uint32_t kMatrix = 128;  // bytes of 8×8 halves

  // Piece i of an image, [part][k step][pair of column tiles][lane], to 8×8 matrices [part][k
  // step][column tile][half of the k step] whose rows are columns.
  template <int kHeadDim>
  static __device__ __forceinline__ void put(std::uint8_t* parts, int i, uint4 piece) {
    const int lane = i % 32, pair = i / 32 % (kHeadDim / 16), step = i / (2 * kHeadDim);
    std::uint8_t* to = parts + (step * (kHeadDim / 8) + 2 * pair) * 2 * kMatrix + lane * 4;
    *reinterpret_cast<uint32_t*>(to) = piece.x;
    *reinterpret_cast<uint32_t*>(to + kMatrix) = piece.y;
    *reinterpret_cast<uint32_t*>(to + 2 * kMatrix) = piece.z;
    *reinterpret_cast<uint32_t*>(to + 3 * kMatrix) = piece.w;
  }
  static __device__ __forceinline__ void written() { ptx::fence_async_proxy(); }

  template <int kHeadDim, bool kRest>
  static __device__ __forceinline__ void multiply(encode::RowFragments<kHeadDim / 8, 2>& v,
                                                  const encode::TileRows<kHeadDim>& rows,
                                                  const std::uint8_t* parts,
                                                  const TransformHead& head) {
    constexpr int kSteps = kHeadDim / 16;
    constexpr uint32_t kStepBytes = kHeadDim / 8 * 2 * kMatrix;
    const uint64_t first = ptx::wgmma_operand(ptx::shared_address(parts), kMatrix, 2 * kMatrix);
    uint4 a[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) a[step] = rows.operand(step);
    const auto add = [&](uint64_t part, bool is_first) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const uint64_t b = part + step * (kStepBytes >> 4);
        if constexpr (kHeadDim == 128) {
          ptx::wgmma_bf16_n128(v, a[step], b, is_first && step == 0);
        } else {
          ptx::wgmma_bf16_n64(v, a[step], b, is_first && step == 0);
        }
      }
    };
    ptx::wgmma_fence();
    add(first, true);
    if (head.num_parts == 2) add(first + kSteps * (kStepBytes >> 4), false);
    ptx::wgmma_commit();
    ptx::wgmma_wait();
    if constexpr (kRest) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) a[step] = rows.rest(step);
      ptx::wgmma_fence();
      add(first, false);
      ptx::wgmma_commit();
      ptx::wgmma_wait();
    }
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
      for (int k = 0; k < 4; ++k) v[n][k] *= head.unit;
    }
  }
};

}  // namespace oscar::cuda::sm90

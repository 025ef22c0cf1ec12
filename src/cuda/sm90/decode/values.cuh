// Outputs of a coded page: value bytes as float16 denormals, weights as float16.
//
// A byte placed in the low bits of a half is byte·2^−24, which tensor cores take exactly; masks
// that keep the low codes leave Σ_{i≤p} c_i·4^i, and the differences of neighbouring tiles undo the
// chain at the end (finish.cuh).
#pragma once

#include "cuda/sm90/decode/keys.cuh"
#include "cuda/sm90/decode/warp_state.cuh"

namespace oscar::cuda::sm90 {

// Largest value scale of this lane's tokens, over the groups; positive.
template <class C>
__device__ __forceinline__ float largest_scale(uint32_t metadata, int group_stride, int lane) {
  float largest = 0x1p-40f;
#pragma unroll
  for (int chunk = 0; chunk < C::kChunks; ++chunk) {
#pragma unroll
    for (int slab = 0; slab < 4; ++slab) {
      const TokenScales scales =
          load_scales<C::kAffine>(metadata + chunk * group_stride, slab, lane >> 2);
      largest = fmaxf(largest, fmaxf(scales.scale[0], scales.scale[1]));
    }
  }
  return largest;
}

// The weights of a slab as operand B: halves of tokens 2t, 2t + 1 (x) and 2t + 8, 2t + 9 (y) for
// column g.
template <class C>
__device__ __forceinline__ uint2 weight_operand(const float (&weights)[2][C::kHeadTiles],
                                                int lane) {
  if constexpr (C::kHeadTiles == 1) {
    // Column 2h takes the lower eight tokens of head h, column 2h + 1 the upper eight.
    const uint32_t both = ptx::transpose_8x8(ptx::pack_f16(weights[0][0], weights[1][0]));
    const bool is_upper = (lane >> 2) & 1;
    return {is_upper ? 0u : both, is_upper ? both : 0u};
  } else {
    return {ptx::transpose_8x8(ptx::pack_f16(weights[0][0], weights[0][1])),
            ptx::transpose_8x8(ptx::pack_f16(weights[1][0], weights[1][1]))};
  }
}

// out += codes of two value bytes a word (`selector` says which) times the weights, for the tiles
// from `first`.
template <class C>
__device__ __forceinline__ void accumulate_bytes(WarpState<C>& state, uint4 codes,
                                                 uint32_t selector, int first, uint2 weights) {
  const uint4 halves = {__byte_perm(codes.x, 0, selector), __byte_perm(codes.y, 0, selector),
                        __byte_perm(codes.z, 0, selector), __byte_perm(codes.w, 0, selector)};
#pragma unroll
  for (int p = 0; p < C::kCodesPerByte; ++p) {
    const uint32_t mask = ((1u << (C::kValueBits * (p + 1))) - 1) * 0x00010001u;
    const bool is_last = p == C::kCodesPerByte - 1;
    ptx::mma_f16(state.out[first + p], is_last ? halves : masked(halves, mask), weights.x,
                 weights.y);
  }
}

// codes, metadata: the page's value plane in shared memory; logits relative to state.max.
template <class C>
__device__ __forceinline__ void accumulate_page(WarpState<C>& state, const PageLogits<C>& logits,
                                                uint32_t codes, uint32_t metadata, int group_stride,
                                                int lane) {
  constexpr uint32_t kLowBytes = 0x4140, kHighBytes = 0x4342;
  constexpr bool kNarrow = C::kHeadDim == 64 && C::kValueBits == 2;
  uint4 shared_by_slabs = {};
#pragma unroll
  for (int slab = 0; slab < 4; ++slab) {
    float weights[2][C::kHeadTiles];
#pragma unroll
    for (int i = 0; i < C::kHeadTiles; ++i) {
      weights[0][i] = ptx::exp2_approx(logits[slab][0][i]);
      weights[1][i] = ptx::exp2_approx(logits[slab][1][i]);
      state.sum[i] += weights[0][i] + weights[1][i];
    }
#pragma unroll
    for (int chunk = 0; chunk < C::kChunks; ++chunk) {
      const TokenScales scales =
          load_scales<C::kAffine>(metadata + chunk * group_stride, slab, lane >> 2);
      float scaled[2][C::kHeadTiles];
#pragma unroll
      for (int i = 0; i < C::kHeadTiles; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          scaled[half][i] = weights[half][i] * scales.scale[half];
          float& zero = state.zero[chunk][i];
          zero =
              C::kAffine ? fmaf(scaled[half][i], scales.zero[half], zero) : zero + scaled[half][i];
        }
      }
      const uint2 operand = weight_operand<C>(scaled, lane);
      if constexpr (kNarrow) {
        if (slab % 2 == 0) {
          shared_by_slabs = ptx::load_shared_16(codes + (slab / 2 * 32 + lane) * 16);
        }
        accumulate_bytes<C>(state, shared_by_slabs, slab % 2 ? kHighBytes : kLowBytes, 0, operand);
      } else {
        constexpr int kTiles = C::kChunkDim / (32 * C::kCodesPerByte);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const int all = chunk * kTiles + tile;
          const uint4 x =
              ptx::load_shared_16(codes + ((slab * (C::kChunks * kTiles) + all) * 32 + lane) * 16);
          const int first = all * 2 * C::kCodesPerByte;
          accumulate_bytes<C>(state, x, kLowBytes, first, operand);
          accumulate_bytes<C>(state, x, kHighBytes, first + C::kCodesPerByte, operand);
        }
      }
    }
  }
}

}  // namespace oscar::cuda::sm90

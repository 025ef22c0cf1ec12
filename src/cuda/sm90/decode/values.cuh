// Outputs of a coded page: value bytes as float16 denormals, weights as float16.
//
// A byte placed in the low bits of a half is byte·2^−24, which tensor cores take exactly; masks
// that keep the low codes leave Σ_{i≤p} c_i·4^i, and the differences of neighbouring tiles undo the
// chain at the end (finish.cuh).
#pragma once

#include "cuda/sm90/decode/keys.cuh"
#include "cuda/sm90/decode/warp_state.cuh"

namespace oscar::cuda::sm90 {

// Packed scales (and zero points) of this lane's value tokens: two words a slab when affine, one
// else.
template <class C>
struct PackedScales {
  static constexpr int kWords = C::kAffine ? 2 : 1;
  uint32_t words[C::kChunks][4][kWords];

  __device__ __forceinline__ void load(uint32_t metadata, int group_stride, int lane) {
    const uint32_t first = metadata + (lane >> 2) * (4 * kWords);
#pragma unroll
    for (int chunk = 0; chunk < C::kChunks; ++chunk) {
#pragma unroll
      for (int slab = 0; slab < 4; ++slab) {
        const uint32_t address = first + chunk * group_stride + slab * (32 * kWords);
        if constexpr (C::kAffine) {
          const uint2 x = ptx::load_shared_8(address);
          words[chunk][slab][0] = x.x;
          words[chunk][slab][1] = x.y;
        } else {
          words[chunk][slab][0] = ptx::load_shared_4(address);
        }
      }
    }
  }
  __device__ __forceinline__ TokenScales at(int chunk, int slab) const {
    const auto& w = words[chunk][slab];
    if constexpr (C::kAffine) {
      return {{ptx::low_bf16(w[0]), ptx::low_bf16(w[1])},
              {ptx::high_bf16(w[0]), ptx::high_bf16(w[1])}};
    } else {
      return {{ptx::low_bf16(w[0]), ptx::high_bf16(w[0])}, {0.0f, 0.0f}};
    }
  }
  // Largest scale, positive; zero points ride along in the pairs.
  __device__ __forceinline__ float largest() const {
    uint32_t pair = words[0][0][0];
#pragma unroll
    for (int chunk = 0; chunk < C::kChunks; ++chunk) {
#pragma unroll
      for (int slab = 0; slab < 4; ++slab) {
#pragma unroll
        for (int w = 0; w < kWords; ++w) pair = ptx::max_bf16x2(pair, words[chunk][slab][w]);
      }
    }
    const float scale =
        C::kAffine ? ptx::low_bf16(pair) : fmaxf(ptx::low_bf16(pair), ptx::high_bf16(pair));
    return fmaxf(scale, 0x1p-40f);
  }
};

// The weights of a slab as operand B: halves of tokens 2t, 2t + 1 (x) and 2t + 8, 2t + 9 (y) for
// column g.
template <class C>
__device__ __forceinline__ uint2 weight_operand(const float (&weights)[2][C::kHeadTiles],
                                                int lane) {
  if constexpr (C::kHeadTiles == 1) {
    // Column 2h takes the lower eight tokens of head h, column 2h + 1 the upper eight.
    const uint32_t both = ptx::transpose_8x8(ptx::pack_f16(weights[0][0], weights[1][0]));
    const uint32_t is_upper = static_cast<uint32_t>(lane) >> 2 & 1;
    // Of trellis codes by the pipe of multiplications: the other one is what they are short of.
    if constexpr (C::kTrellis) return {both * (1 - is_upper), both * is_upper};
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

// The same of trellis codes: words of tokens 2t, 2t + 1, 2t + 8, 2t + 9. A word's bytes are pairs
// of tiles, its even channels rows g and its odd ones rows g + 8.
template <class C>
__device__ __forceinline__ void accumulate_words(WarpState<C>& state, uint4 words, int first,
                                                 uint2 weights) {
  const uint32_t codes[4] = {words.x, words.y, words.z, words.w};
  uint32_t even[4], odd[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const TrellisParts parts = TrellisParts::of(codes[i]);
    even[i] = parts.even();
    odd[i] = parts.odd();
  }
#pragma unroll
  for (int byte = 0; byte < 4; ++byte) {
    const uint4 halves = {byte_pair(even[0], even[1], byte), byte_pair(odd[0], odd[1], byte),
                          byte_pair(even[2], even[3], byte), byte_pair(odd[2], odd[3], byte)};
    ptx::mma_f16(state.out[first + 2 * byte], masked(halves, kLowerLevels), weights.x, weights.y);
    ptx::mma_f16(state.out[first + 2 * byte + 1], halves, weights.x, weights.y);
  }
}

// The same of head size 64: lane groups g and g ^ 1 share a word, and take its even and odd
// channels.
template <class C>
__device__ __forceinline__ void accumulate_shared_words(WarpState<C>& state, uint4 words,
                                                        uint2 weights, int parity) {
  const uint32_t codes[4] = {words.x, words.y, words.z, words.w};
  uint32_t x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = TrellisParts::of(codes[i]).of_parity(parity);
#pragma unroll
  for (int byte = 0; byte < 4; byte += 2) {
    const uint4 halves = {byte_pair(x[0], x[1], byte), byte_pair(x[0], x[1], byte + 1),
                          byte_pair(x[2], x[3], byte), byte_pair(x[2], x[3], byte + 1)};
    ptx::mma_f16(state.out[byte], masked(halves, kLowerLevels), weights.x, weights.y);
    ptx::mma_f16(state.out[byte + 1], halves, weights.x, weights.y);
  }
}

// codes: the page's value codes in shared memory; logits relative to state.max.
template <class C>
__device__ __forceinline__ void accumulate_page(WarpState<C>& state, const PageLogits<C>& logits,
                                                const PackedScales<C>& packed, uint32_t codes,
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
      const TokenScales scales = packed.at(chunk, slab);
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
      if constexpr (C::kTrellis && C::kHeadDim == 64) {
        const int g = lane >> 2, shared_lane = 4 * (g >> 1) + (lane & 3);
        const uint4 x = ptx::load_shared_16(codes + (slab * 16 + shared_lane) * 16);
        accumulate_shared_words<C>(state, x, operand, g & 1);
      } else if constexpr (C::kTrellis) {
        const uint4 x = ptx::load_shared_16(codes + ((slab * C::kChunks + chunk) * 32 + lane) * 16);
        accumulate_words<C>(state, x, chunk * C::kTilesPerChunk, operand);
      } else if constexpr (kNarrow) {
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

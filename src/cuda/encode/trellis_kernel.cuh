// Rows to pages of trellis codes for many tokens: a warp takes sixteen rows at a time, and searches
// the words of eight together. docs/kernels/cuda-encode.md counts the instructions.
#pragma once

#include "cuda/encode/fragments.h"
#include "cuda/encode/trellis_rows.cuh"

namespace oscar::cuda::encode {

// What a warp has in shared memory: a tile of raw rows; its second tile, or what BF16 leaves of
// rows less the mean and then the second half of the rows; words.
template <int kHeadDim>
inline constexpr int kTrellisWarpBytes = 2 * kSlab* kHeadDim * 2 + TrellisRows<kHeadDim>::kBytes;
inline constexpr int kTrellisThreads = 384;  // at most: 168 registers a thread

// Eight rows that are in fragments to their places.
template <int kHeadDim>
__device__ __forceinline__ void encode_trellis_half(RowFragment<kHeadDim / 8>& v, float* words,
                                                    const TileJob& job, const RowRules& rules,
                                                    const RankGuess& guess, int token) {
  const TrellisRows<kHeadDim> rows{words};
  const std::int64_t slot = token < 0 ? -1 : job.params.slots[token];
  TrellisScale scale;
  if (!rows.prepare(v, rules, guess, slot >= 0, scale) && job.params.non_finite != nullptr) {
    *job.params.non_finite = 1;
  }
  __syncwarp();
#pragma unroll 1
  for (int word = threadIdx.x & 31; word < 8 * TrellisRows<kHeadDim>::kWords; word += 32) {
    search_word(words, word);
  }
  __syncwarp();
  rows.store(plane_of(job, slot), static_cast<int>(slot & (kPageTokens - 1)), job.side_index,
             rows.fitted(v, rules, scale));
  __syncwarp();  // before the next rows' positions
}

// Tiles begin at the first token's slab. The transform's image lies behind the warps' rows in
// shared memory. grid: (blocks, heads, sides).
template <int kHeadDim, Source kSource>
__global__ void __launch_bounds__(kTrellisThreads, 1)
    encode_trellis_kernel(const __grid_constant__ EncodeParams params) {
  extern __shared__ __align__(16) std::uint8_t shared[];
  constexpr int kTiles = kHeadDim / 8, kTileBytes = kSlab * kHeadDim * 2;
  constexpr bool kRotated = kSource == Source::kRotated, kMean = kSource == Source::kLessMean;
  const int side_index = blockIdx.z;
  const TileJob job{params, params.sides[side_index], static_cast<int>(blockIdx.y), side_index, 0,
                    0};
  if (job.side.rows == nullptr) return;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2;
  const int num_warps = blockDim.x >> 5;
  std::uint8_t* own = shared + warp * kTrellisWarpBytes<kHeadDim>;
  const uint32_t first_tile = ptx::shared_address(own);
  const TileRows<kHeadDim> raw{first_tile, first_tile + kTileBytes};
  float4* spare = reinterpret_cast<float4*>(own + kTileBytes) + lane;
  float* words = reinterpret_cast<float*>(own + 2 * kTileBytes);
  [[maybe_unused]] uint4* parts =
      reinterpret_cast<uint4*>(shared + num_warps * kTrellisWarpBytes<kHeadDim>);
  TransformHead head{1.0f, 1, {}};
  if constexpr (!kRotated) {
    const std::uint8_t* image = static_cast<const std::uint8_t*>(job.side.transform_image) +
                                job.head * transform_head_bytes(kHeadDim);
    head = *reinterpret_cast<const TransformHead*>(image);
    const int count = head.num_parts * static_cast<int>(transform_part_bytes(kHeadDim) / 16);
    const uint4* source = reinterpret_cast<const uint4*>(image + sizeof(TransformHead));
    for (int i = threadIdx.x; i < count; i += blockDim.x) parts[i] = source[i];
    __syncthreads();
  }
  const RowRules rules = rules_of(job, true);
  const RankGuess guess = RankGuess::of(rules.clip_ratio, kHeadDim);
  const std::int64_t first_slot = params.slots[0];
  const int shift = first_slot < 0 ? 0 : static_cast<int>(first_slot % kSlab);
  const int num_tokens = static_cast<int>(params.num_tokens);
  const int num_tiles = (num_tokens + shift + kSlab - 1) / kSlab;
  const auto tokens_of = [&](int tile, int(&tokens)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      tokens[h] = tile * kSlab - shift + 8 * h + g;
      if (tokens[h] >= num_tokens) tokens[h] = -1;  // before the first: negative already
    }
  };
  const int step = gridDim.x * num_warps;
  int tile = blockIdx.x * num_warps + warp;
  int tokens[2];
  tokens_of(tile, tokens);
  if (tile < num_tiles) raw.fetch(job, tokens);
#pragma unroll 1
  for (; tile < num_tiles; tile += step) {
    tokens_of(tile, tokens);
    std::int64_t copies[2];
    copy_slots_of<2>(params, job.side_index, tokens, copies);
    const bool has_copies = any_copy<2>(copies);
    raw.wait();
    RowFragment<kTiles> half;
    {
      RowFragments<kTiles, 2> v;
      if constexpr (kRotated) {
        raw.widen(v);
        if (has_copies) copy_rows<kHeadDim, 2>(v, job, copies);
      }
      if (kSource == Source::kTransform || (kMean && has_copies)) {
        transform_fragments<kHeadDim, 2, kTiles, false>(v, raw, parts, head.num_parts, head.unit,
                                                        0);
      }
      if (!kRotated && has_copies) copy_rows<kHeadDim, 2>(v, job, copies);  // a copy holds the mean
      if constexpr (kMean) {
        raw.subtract(job, tokens);
        transform_fragments<kHeadDim, 2, kTiles, true>(v, raw, parts, head.num_parts, head.unit, 0);
      }
      __syncwarp();  // all lanes have read what follows overwrites
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        spare[16 * n] = {v[n][2], v[n][3], v[n + 1][2], v[n + 1][3]};
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        half[n][0] = v[n][0];
        half[n][1] = v[n][1];
      }
    }
    // The next rows come while these are encoded.
    int next[2];
    tokens_of(tile + step, next);
    if (tile + step < num_tiles) raw.fetch(job, next);
#pragma unroll 1
    for (int h = 0; h < 2; ++h) {
      encode_trellis_half<kHeadDim>(half, words, job, rules, guess, h ? tokens[1] : tokens[0]);
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        const float4 x = spare[16 * n];
        half[n][0] = x.x;
        half[n][1] = x.y;
        half[n + 1][0] = x.z;
        half[n + 1][1] = x.w;
      }
    }
  }
}

}  // namespace oscar::cuda::encode

// Rows to pages with a warp's rows in matrix fragments: sixteen rows a warp for many tokens, eight
// a block for a decode step. docs/kernels/cuda-encode.md counts the instructions.
//
// The fragments come from tensor cores in either case: rows that are rotated already are multiplied
// by the identity, which only moves (and widens) them.
#pragma once

#include <type_traits>

#include "cuda/encode/fragments.h"
#include "cuda/encode/packed_kernel.cuh"
#include "cuda/encode/trellis_rows.cuh"
#include "cuda/encode/words_kernel.cuh"

namespace oscar::cuda::encode {

// Threads of a block, one block a multiprocessor: 168 registers a thread, 255 with the mean; a
// transform's image lies in shared memory once.
template <Source kSource>
inline constexpr int kFragmentThreads = kSource == Source::kLessMean ? 256 : 384;
inline constexpr int kFewTokens = 8, kFewWarps = 4;  // of a block of the decode step's kernel

// Codes, scales and flags of rows that are in fragments. spare: with two halves, this lane's 16
// bytes for the first pair of column tiles, the next 512 bytes on; kIsKept: the second half is
// there already.
template <int kHeadDim, int kHalves, bool kIsKept = false>
__device__ __forceinline__ void encode_fragments(const RowFragments<kHeadDim / 8, kHalves>& v,
                                                 float4* spare, const TileJob& job,
                                                 const RowRules& rules, const RankGuess& guess,
                                                 const int (&tokens)[kHalves]) {
  constexpr int kTiles = kHeadDim / 8;
  RowBytes rows[kHalves] = {};
  uint32_t scale_zero[kHalves] = {};
  bool is_live[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int token = tokens[h % kHalves];
    is_live[h] = token >= 0 && job.params.slots[token] >= 0;
  }
  // One copy of the code serves both halves (twice it would not fit the instruction cache); the
  // second half waits in shared memory, as registers are scarce.
  RowFragment<kTiles> half;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    half[n][0] = v[n][0];
    half[n][1] = v[n][1];
  }
  if constexpr (kHalves == 2 && !kIsKept) {
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      spare[16 * n] = {v[n][2], v[n][3], v[n + 1][2], v[n + 1][3]};
    }
  }
#pragma unroll 1
  for (int h = 0; h < kHalves; ++h) {
    CodeFragment<kTiles> codes;
    uint32_t stored = 0;
    if (!encode_rows<kTiles>(half, rules, guess, is_live[0], codes, stored) &&
        job.params.non_finite != nullptr) {
      *job.params.non_finite = 1;
    }
    const RowBytes bytes = pack_row<kHeadDim>(codes, job.side_index, rules.bits);
    if constexpr (kHalves == 2) {
      rows[0] = rows[1];
      scale_zero[0] = scale_zero[1];
      is_live[0] = is_live[1];
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        const float4 x = spare[16 * n];
        half[n][0] = x.x;
        half[n][1] = x.y;
        half[n + 1][0] = x.z;
        half[n + 1][1] = x.w;
      }
    }
    rows[kHalves - 1] = bytes;
    scale_zero[kHalves - 1] = stored;
  }
  // Looked up again: registers are scarce above.
  std::int64_t slots[kHalves];
#pragma unroll
  for (int h = 0; h < kHalves; ++h) slots[h] = tokens[h] < 0 ? -1 : job.params.slots[tokens[h]];
  const RowPlaces<kHalves> places = places_of<kHalves>(job, slots);
  if (rules.bits == 2) {
    store_rows<kHeadDim, 2, kHalves>(rows, job.side_index, places);
  } else if (rules.bits == 3) {
    store_rows<kHeadDim, 3, kHalves>(rows, job.side_index, places);
  } else {
    store_rows<kHeadDim, 4, kHalves>(rows, job.side_index, places);
  }
  store_scales<kHalves>(job.side.plane, places, scale_zero);
}

// Bytes of shared memory for raw rows, and as many for their leftovers or second halves; the image
// follows.
template <int kHeadDim, Source kSource>
inline constexpr int kRowBytes = kHeadDim / 16 * kFragmentThreads<kSource> * 16;

// Many tokens: a warp takes sixteen rows at a time; tiles begin at the first token's slab, so that
// consecutive slots fill whole slabs. grid: (blocks, heads, sides).
template <int kHeadDim, Source kSource>
__global__ void __launch_bounds__(kFragmentThreads<kSource>, 1)
    encode_fragments_kernel(const __grid_constant__ EncodeParams params) {
  extern __shared__ __align__(16) std::uint8_t shared[];
  constexpr int kTiles = kHeadDim / 8;
  const int side_index = blockIdx.z;
  const TileJob job{params, params.sides[side_index], static_cast<int>(blockIdx.y), side_index, 0,
                    0};
  if (job.side.rows == nullptr) return;
  constexpr int kThreads = kFragmentThreads<kSource>, kWarps = kThreads / 32;
  constexpr int kBytes = kRowBytes<kHeadDim, kSource>;
  uint4* parts = reinterpret_cast<uint4*>(shared + 2 * kBytes);
  constexpr uint32_t kTileBytes = TileRows<kHeadDim>::kBytes;
  const uint32_t first_row = ptx::shared_address(shared) + (threadIdx.x >> 5) * kTileBytes;
  const TileRows<kHeadDim> raw{first_row, first_row + kBytes};
  // Second halves lie where a warp's own leftovers were.
  float4* spare = reinterpret_cast<float4*>(shared + kBytes + (threadIdx.x >> 5) * kTileBytes) +
                  (threadIdx.x & 31);
  TransformHead head{1.0f, 1, {}};
  if constexpr (kSource != Source::kRotated) {
    const std::uint8_t* image = static_cast<const std::uint8_t*>(job.side.transform_image) +
                                job.head * transform_head_bytes(kHeadDim);
    head = *reinterpret_cast<const TransformHead*>(image);
    const int count = head.num_parts * static_cast<int>(transform_part_bytes(kHeadDim) / 16);
    const uint4* source = reinterpret_cast<const uint4*>(image + sizeof(TransformHead));
    for (int i = threadIdx.x; i < count; i += kThreads) {
      parts[i] = source[i];
    }
    __syncthreads();
  }
  const RowRules rules = rules_of(job, false);
  const RankGuess guess = RankGuess::of(rules.clip_ratio, kHeadDim);
  const std::int64_t first_slot = params.slots[0];
  const int shift = first_slot < 0 ? 0 : static_cast<int>(first_slot % kSlab);
  const int num_tokens = static_cast<int>(params.num_tokens);
  const int num_tiles = (num_tokens + shift + kSlab - 1) / kSlab;
  const int warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2;
  const auto tokens_of = [&](int tile, int(&tokens)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      tokens[h] = tile * kSlab - shift + 8 * h + g;
      if (tokens[h] >= num_tokens) tokens[h] = -1;  // before the first: negative already
    }
  };
  const int step = gridDim.x * kWarps;
  int tile = blockIdx.x * kWarps + warp;
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
    RowFragments<kTiles, 2> v;
    if constexpr (kSource == Source::kRotated) {
      if (has_copies) {
        raw.widen(v);
        copy_rows<kHeadDim, 2>(v, job, copies);
      }
      // One half in registers at a time.
      RowFragment<kTiles> half;
      raw.widen(1, half);
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        spare[16 * n] = {half[n][0], half[n][1], half[n + 1][0], half[n + 1][1]};
      }
      raw.widen(0, half);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        v[n][0] = half[n][0];
        v[n][1] = half[n][1];
      }
    }
    if (kSource == Source::kTransform || (kSource == Source::kLessMean && has_copies)) {
      transform_fragments<kHeadDim, 2, kTiles, false>(v, raw, parts, head.num_parts, head.unit, 0);
    }
    if (kSource != Source::kRotated && has_copies) {
      copy_rows<kHeadDim, 2>(v, job, copies);  // a copy holds the mean
    }
    if constexpr (kSource == Source::kLessMean) {
      raw.subtract(job, tokens);
      transform_fragments<kHeadDim, 2, kTiles, true>(v, raw, parts, head.num_parts, head.unit, 0);
    }
    // The next rows come while these are encoded.
    __syncwarp();
    int next[2];
    tokens_of(tile + step, next);
    if (tile + step < num_tiles) raw.fetch(job, next);
    encode_fragments<kHeadDim, 2, kSource == Source::kRotated>(v, spare, job, rules, guess, tokens);
  }
}

// Eight rows of a block, which its first warp has in fragments: all warps search, two lanes a word.
template <int kHeadDim>
__device__ __forceinline__ void encode_few_trellis(RowFragment<kHeadDim / 8>& v, float* words,
                                                   const TileJob& job, const RowRules& rules,
                                                   const RankGuess& guess, std::int64_t slot) {
  const TrellisRows<kHeadDim> rows{words};
  TrellisScale scale;
  if (threadIdx.x < 32 && !rows.prepare(v, rules, guess, slot >= 0, scale) &&
      job.params.non_finite != nullptr) {
    *job.params.non_finite = 1;
  }
  __syncthreads();
  constexpr int kWords = 8 * TrellisRows<kHeadDim>::kWords;
  static_assert(kWords % 16 == 0 && 32 * kFewWarps >= 2 * kWords);
  const int word = static_cast<int>(threadIdx.x) / 2;
  if (word < kWords) search_word_together(words, word, threadIdx.x & 1);
  __syncthreads();
  if (threadIdx.x >= 32) return;
  rows.store(plane_of(job, slot), static_cast<int>(slot & (kPageTokens - 1)), job.side_index,
             rows.fitted(v, rules, scale));
}

// Few tokens: a block takes eight rows, its warps share the columns of the transform. grid: (tokens
// / 8, heads, sides).
template <int kHeadDim, Source kSource, Coding kCoding>
__global__ void __launch_bounds__(32 * kFewWarps, 1)
    encode_few_kernel(const __grid_constant__ EncodeParams params) {
  constexpr int kTiles = kHeadDim / 8, kCount = kTiles / kFewWarps, kStride = kHeadDim + 8;
  __shared__ float rotated[2][kFewTokens][kStride];  // rows to code, rows to copy
  const int side_index = blockIdx.z, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int g = lane >> 2, t = lane & 3;
  const TileJob job{params, params.sides[side_index], static_cast<int>(blockIdx.y), side_index, 0,
                    0};
  constexpr bool kTransform = kSource != Source::kRotated, kMean = kSource == Source::kLessMean;
  // Of the other warps, what is done after the transform takes the search alone.
  constexpr bool kSearch = kCoding == Coding::kTrellis;
  if (job.side.rows == nullptr || (!kTransform && warp != 0 && !kSearch)) return;
  int tokens[1] = {static_cast<int>(blockIdx.x) * kFewTokens + g};
  if (tokens[0] >= params.num_tokens) tokens[0] = -1;
  const std::int64_t slots[1] = {tokens[0] < 0 ? -1 : params.slots[tokens[0]]};
  using Mean = RowMean<kHeadDim>;
  const Mean mean = kMean ? Mean::of(job, tokens[0]) : Mean::none(job);
  RawRow<kHeadDim> raw;
  raw.load(tokens[0] < 0 ? nullptr : row_of(job, tokens[0]));
  std::int64_t copies[1];
  copy_slots_of<1>(params, side_index, tokens, copies);
  if (copies_raw_keys(params, side_index) && warp == (kTransform ? kFewWarps - 1 : 0)) {
    copy_raw_key<kHeadDim>(job, raw, tokens[0]);
  }
  const bool has_copies = any_copy<1>(copies);
  const RowRules rules = rules_of(job, kSearch);
  const RankGuess guess = RankGuess::of(rules.clip_ratio, kHeadDim);
  RowFragments<kTiles, 1> v;
  if constexpr (kTransform) {
    const std::uint8_t* image = static_cast<const std::uint8_t*>(job.side.transform_image) +
                                job.head * transform_head_bytes(kHeadDim);
    const TransformHead head = *reinterpret_cast<const TransformHead*>(image);
    const uint4* parts = reinterpret_cast<const uint4*>(image + sizeof(TransformHead));
    const auto keep = [&](const RowFragments<kCount, 1>& mine, int which) {
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
        *reinterpret_cast<float2*>(&rotated[which][g][8 * (warp * kCount + n) + 2 * t]) = {
            mine[n][0], mine[n][1]};
      }
    };
    RowFragments<kCount, 1> mine;
    if (!kMean || has_copies) {
      transform_fragments<kHeadDim, 1, kCount, false>(mine, raw, parts, head.num_parts, head.unit,
                                                      warp * kCount);
      keep(mine, kMean ? 1 : 0);
    }
    if constexpr (kMean) {
      subtract_as_kind(raw, mean, 0);
      transform_fragments<kHeadDim, 1, kCount, true>(mine, raw, parts, head.num_parts, head.unit,
                                                     warp * kCount);
      keep(mine, 0);
    }
    __syncthreads();
    const auto gather = [&](int pass) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float2 x = *reinterpret_cast<const float2*>(&rotated[pass][g][8 * n + 2 * t]);
        v[n][0] = x.x;
        v[n][1] = x.y;
      }
    };
    if (warp == 1 && has_copies) {
      gather(kMean ? 1 : 0);
      copy_rows<kHeadDim, 1>(v, job, copies);
    }
    if (warp != 0 && !kSearch) return;
    gather(0);
  } else {
    RowWords<kTiles, 1> words;
    raw.words(words);
    widen_words<kTiles, 1>(v, words);
    if (has_copies && (!kSearch || warp == 0)) copy_rows<kHeadDim, 1>(v, job, copies);
  }
  if constexpr (kSearch) {
    __shared__ float words[TrellisRows<kHeadDim>::kBytes / 4];
    encode_few_trellis<kHeadDim>(v, words, job, rules, guess, slots[0]);
  } else if constexpr (kCoding == Coding::kPacked) {
    RowBytes rows[1] = {};
    uint32_t scale_zero[1];
    const auto load = [&](int, RowFragment<kTiles>& half) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        half[n][0] = v[n][0];
        half[n][1] = v[n][1];
      }
    };
    bool is_odd[1];
    if constexpr (kTransform) {
      encode_packed<kHeadDim, 1>(v, side_index, rules, guess, slots[0] >= 0, load, rows,
                                 scale_zero[0], is_odd[0]);
    } else {
      RowWords<kTiles, 1> words;
      raw.words(words);
      const auto encode = [&](auto side) {
        const auto get = [&](int r, uint32_t(&pair)[1][2]) {
          pair[0][0] = words[0][coded_tile<kTiles>(r, side)];
          pair[0][1] = words[0][coded_tile<kTiles>(r + 1, side)];
        };
        encode_words<kHeadDim, 1, side>(get, rules, guess, slots[0] >= 0, load, rows, scale_zero[0],
                                        is_odd[0]);
      };
      if (side_index == 0) {
        encode(std::integral_constant<int, 0>{});
      } else {
        encode(std::integral_constant<int, 1>{});
      }
    }
    store_packed<kHeadDim, 1>(job, rules, slots, load, rows, scale_zero, is_odd);
  } else {
    encode_fragments<kHeadDim, 1>(v, nullptr, job, rules, guess, tokens);
  }
}

}  // namespace oscar::cuda::encode

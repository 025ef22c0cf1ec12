// Rows to pages with a warp's rows in matrix fragments: sixteen rows a warp for many tokens, eight
// a block for a decode step. docs/kernels/cuda-encode.md counts the instructions.
//
// The fragments come from tensor cores in either case: rows that are rotated already are multiplied
// by the identity, which only moves (and widens) them.
#pragma once

#include <type_traits>

#include "cuda/encode/kernel.cuh"
#include "cuda/encode/row_store.cuh"
#include "cuda/encode/transform_image.h"

namespace oscar::cuda::encode {

inline constexpr int kFragmentWarps = 4, kFragmentThreads = 32 * kFragmentWarps;
// Blocks of a multiprocessor: 128 registers a thread, 168 with the transform.
inline constexpr int fragment_blocks(bool has_transform) { return has_transform ? 3 : 4; }
inline constexpr int kFewTokens = 8, kFewWarps = 4;  // of a block of the decode step's kernel

// kHalves: 1 for rows g, 2 for rows g and g + 8 of a matrix tile.
template <int kTiles, int kHalves>
using RowFragments = float[kTiles][2 * kHalves];

// A lane's raw values: 8 neighbouring channels of each 32, of rows g (and g + 8).
template <int kHeadDim, int kHalves>
struct RawRows {
  uint4 words[kHalves][kHeadDim / 32];

  __device__ __forceinline__ void load(const TileJob& job, const int (&tokens)[kHalves]) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const bf16_t* row = job.side.rows + std::int64_t{tokens[h]} * job.side.token_stride +
                          job.head * job.side.head_stride + (threadIdx.x & 3) * 8;
#pragma unroll
      for (int j = 0; j < kHeadDim / 32; ++j) {
        words[h][j] = tokens[h] < 0 ? uint4{0, 0, 0, 0}
                                    : __ldcs(reinterpret_cast<const uint4*>(row + 32 * j));
      }
    }
  }
};

// Operand A of k step 2j + i.
template <int kHalves>
__device__ __forceinline__ uint4 operand_of(const uint4 (&w)[kHalves], int i) {
  const uint4 &a = w[0], &b = w[kHalves - 1];
  return i ? uint4{a.z, kHalves == 2 ? b.z : 0, a.w, kHalves == 2 ? b.w : 0}
           : uint4{a.x, kHalves == 2 ? b.x : 0, a.y, kHalves == 2 ? b.y : 0};
}

// v[n] += a·b, or = a·b.
template <bool kFirst, int kTiles, int kHalves>
__device__ __forceinline__ void multiply(RowFragments<kTiles, kHalves>& v, int n, uint4 a,
                                         uint32_t b0, uint32_t b1) {
  float c[4] = {0, 0, 0, 0};
  if constexpr (!kFirst) {
#pragma unroll
    for (int k = 0; k < 2 * kHalves; ++k) c[k] = v[n][k];
  }
  ptx::mma_bf16(c, a, b0, b1);
#pragma unroll
  for (int k = 0; k < 2 * kHalves; ++k) v[n][k] = c[k];
}

// Rows as they are.
template <int kHeadDim, int kHalves>
__device__ __forceinline__ void widen_rows(RowFragments<kHeadDim / 8, kHalves>& v,
                                           const RawRows<kHeadDim, kHalves>& raw) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const auto add = [&](auto first, int i) {
    // Channel 8·quarter + 4i + 2r + {0, 1} is column g of its tile.
    const int in_step = g - 4 * i;
    const uint32_t one = in_step & 1 ? 0x3f800000u : 0x3f80u;
    const uint32_t b0 = in_step >> 1 == 0 ? one : 0u, b1 = in_step >> 1 == 1 ? one : 0u;
#pragma unroll
    for (int j = 0; j < kHeadDim / 32; ++j) {
      const uint4 words[2] = {raw.words[0][j], raw.words[kHalves - 1][j]};
      uint4 a = operand_of<2>(words, i);
      if (kHalves == 1) a.y = a.w = 0;
#pragma unroll
      for (int quarter = 0; quarter < 4; ++quarter) {
        multiply<first(), kHeadDim / 8, kHalves>(v, 4 * j + quarter, a, t == quarter ? b0 : 0u,
                                                 t == quarter ? b1 : 0u);
      }
    }
  };
  add(std::true_type{}, 0);
  add(std::false_type{}, 1);
}

// Eight channels less the mean, as BF16 and what BF16 leaves of them.
struct SplitWords {
  uint4 high, low;
};
__device__ __forceinline__ SplitWords subtract_mean(const TileJob& job, std::int64_t token,
                                                    uint4 raw, int channel) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  uint32_t high[4], low[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    float x[2] = {ptx::low_bf16(words[w]), ptx::high_bf16(words[w])};
    if (token >= 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        x[i] = __fsub_rn(x[i], mean_at(job, token, channel + 2 * w + i));
      }
    }
    high[w] = ptx::pack_bf16(x[0], x[1]);
    low[w] = ptx::pack_bf16(x[0] - ptx::low_bf16(high[w]), x[1] - ptx::high_bf16(high[w]));
  }
  return {{high[0], high[1], high[2], high[3]}, {low[0], low[1], low[2], low[3]}};
}

// Rows times the matrix of `image` (its parts in shared or global memory), for column tiles [begin,
// begin + kCount).
template <int kHeadDim, int kHalves, int kCount>
__device__ __forceinline__ void transform_fragments(RowFragments<kCount, kHalves>& v,
                                                    const RawRows<kHeadDim, kHalves>& raw,
                                                    const TileJob& job,
                                                    const int (&tokens)[kHalves],
                                                    bool has_mean, const uint4* parts,
                                                    int num_parts, float unit, int begin) {
  constexpr int kPairs = kHeadDim / 16;
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int j = 0; j < kHeadDim / 32; ++j) {
    uint4 rows[kHalves], rest[kHalves];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      rows[h] = raw.words[h][j];
      if (!has_mean) continue;
      const SplitWords split = subtract_mean(job, tokens[h], rows[h], 32 * j + 8 * (lane & 3));
      rows[h] = split.high;
      rest[h] = split.low;
    }
    const auto add = [&](auto first, const uint4(&words)[kHalves], int part) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 a = operand_of<kHalves>(words, i);
        const uint4* b = parts + ((part * (kHeadDim / 16) + 2 * j + i) * kPairs + begin / 2) * 32;
#pragma unroll
        for (int pair = 0; pair < kCount / 2; ++pair) {
          const uint4 x = b[pair * 32 + lane];
          if (first() && i == 0) {
            multiply<true, kCount, kHalves>(v, 2 * pair, a, x.x, x.y);
            multiply<true, kCount, kHalves>(v, 2 * pair + 1, a, x.z, x.w);
          } else {
            multiply<false, kCount, kHalves>(v, 2 * pair, a, x.x, x.y);
            multiply<false, kCount, kHalves>(v, 2 * pair + 1, a, x.z, x.w);
          }
        }
      }
    };
    if (j == 0) {
      add(std::true_type{}, rows, 0);
    } else {
      add(std::false_type{}, rows, 0);
    }
    if (num_parts == 2) add(std::false_type{}, rows, 1);
    if (has_mean) add(std::false_type{}, rest, 0);
  }
  if (unit != 1.0f) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
#pragma unroll
      for (int k = 0; k < 2 * kHalves; ++k) v[n][k] *= unit;
    }
  }
}

template <int kHalves>
__device__ __forceinline__ void copy_slots_of(const EncodeParams& params,
                                              const int (&tokens)[kHalves],
                                              std::int64_t (&slots)[kHalves]) {
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    slots[h] = params.copies == nullptr || tokens[h] < 0 ? -1 : params.copy_slots[tokens[h]];
  }
}

// Rotated rows as BF16 into the exact copies; NaN becomes 0.
template <int kHeadDim, int kHalves>
__device__ __forceinline__ void copy_rows(const RowFragments<kHeadDim / 8, kHalves>& v,
                                          const TileJob& job,
                                          const std::int64_t (&slots)[kHalves]) {
  const EncodeParams& p = job.params;
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    if (slots[h] < 0) continue;
    // 2^32 rows would not fit any card.
    const auto slot = static_cast<uint32_t>(slots[h]);
    const auto rows_per_block = static_cast<uint32_t>(p.rows_per_block);
    const std::int64_t block = slot / rows_per_block, row = slot % rows_per_block;
    const std::int64_t plane = (block * p.num_kv_heads + job.head) * 2 + job.side_index;
    uint32_t* out = reinterpret_cast<uint32_t*>(p.copies +
                                                (plane * p.rows_per_block + row) * kHeadDim) +
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
                                                        const int (&tokens)[kHalves]) {
  const int lane = threadIdx.x & 31, g = lane >> 2;
  RowPlaces<kHalves> places;
  std::int64_t slots[kHalves];
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    slots[h] = tokens[h] < 0 ? -1 : job.params.slots[tokens[h]];
    places.planes[h] = plane_of(job, slots[h]);
    places.tokens[h] = static_cast<int>(slots[h] < 0 ? 0 : slots[h] % kPageTokens);
  }
  const std::int64_t first = __shfl_sync(~0u, slots[0], 0);
  bool is_in_place = first >= 0 && first % kSlab == 0;
#pragma unroll
  for (int h = 0; h < kHalves; ++h) is_in_place = is_in_place && slots[h] == first + g + 8 * h;
  places.is_slab = __all_sync(~0u, is_in_place);
  return places;
}

__device__ __forceinline__ RowRules rules_of(const TileJob& job) {
  const DevicePlane& plane = job.side.plane;
  return {plane.bits,   plane.head_dim,     plane.group_size,
          plane.affine, job.side.scale_fit, job.side.clip_ratio[job.head]};
}

// Codes, scales and flags of rows that are in fragments; v is used up.
template <int kHeadDim, int kHalves>
__device__ __forceinline__ void encode_fragments(RowFragments<kHeadDim / 8, kHalves>& v,
                                                 const TileJob& job, const RowRules& rules,
                                                 const RankGuess& guess,
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
  // One copy of the code serves both halves (it would not fit the instruction cache twice): the
  // second half's values move to where the first's were.
#pragma unroll 1
  for (int h = 0; h < kHalves; ++h) {
    RowFragment<kTiles> half;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      half[n][0] = v[n][0];
      half[n][1] = v[n][1];
    }
    CodeFragment<kTiles> codes;
    uint32_t stored = 0;
    if (!encode_rows<kTiles>(half, rules, guess, is_live[0], codes, stored) &&
        job.params.non_finite != nullptr) {
      *job.params.non_finite = 1;
    }
    if constexpr (kHalves == 2) {
      rows[0] = rows[1];
      scale_zero[0] = scale_zero[1];
      is_live[0] = is_live[1];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        v[n][0] = v[n][2];
        v[n][1] = v[n][3];
      }
    }
    rows[kHalves - 1] = pack_row<kHeadDim>(codes, job.side_index, rules.bits);
    scale_zero[kHalves - 1] = stored;
  }
  // Looked up again: registers are scarce above.
  const RowPlaces<kHalves> places = places_of<kHalves>(job, tokens);
  if (rules.bits == 2) {
    store_rows<kHeadDim, 2, kHalves>(rows, job.side_index, places);
  } else if (rules.bits == 3) {
    store_rows<kHeadDim, 3, kHalves>(rows, job.side_index, places);
  } else {
    store_rows<kHeadDim, 4, kHalves>(rows, job.side_index, places);
  }
  store_scales<kHalves>(job.side.plane, places, scale_zero);
}

template <int kHalves>
__device__ __forceinline__ bool any_copy(const std::int64_t (&slots)[kHalves]) {
  return __any_sync(~0u, slots[0] >= 0 || slots[kHalves - 1] >= 0);
}

// Many tokens: a warp takes sixteen rows at a time; tiles begin at the first token's slab, so that
// consecutive slots fill whole slabs. grid: (blocks, heads, sides).
template <int kHeadDim, bool kTransform>
__global__ void __launch_bounds__(kFragmentThreads, fragment_blocks(kTransform))
    encode_fragments_kernel(const __grid_constant__ EncodeParams params) {
  extern __shared__ __align__(16) std::uint8_t shared[];
  constexpr int kTiles = kHeadDim / 8;
  const int side_index = blockIdx.z;
  const TileJob job{params, params.sides[side_index], static_cast<int>(blockIdx.y), side_index, 0,
                    0};
  if (job.side.rows == nullptr) return;
  const uint4* parts = reinterpret_cast<const uint4*>(shared);
  TransformHead head{1.0f, 1, {}};
  if constexpr (kTransform) {
    const std::uint8_t* image = static_cast<const std::uint8_t*>(job.side.transform_image) +
                                job.head * transform_head_bytes(kHeadDim);
    head = *reinterpret_cast<const TransformHead*>(image);
    const int count = head.num_parts * static_cast<int>(transform_part_bytes(kHeadDim) / 16);
    const uint4* source = reinterpret_cast<const uint4*>(image + sizeof(TransformHead));
    for (int i = threadIdx.x; i < count; i += kFragmentThreads) {
      reinterpret_cast<uint4*>(shared)[i] = source[i];
    }
    __syncthreads();
  }
  const RowRules rules = rules_of(job);
  const RankGuess guess = RankGuess::of(rules.clip_ratio, kHeadDim);
  const std::int64_t first_slot = params.slots[0];
  const int shift = first_slot < 0 ? 0 : static_cast<int>(first_slot % kSlab);
  const int num_tokens = static_cast<int>(params.num_tokens);
  const int num_tiles = (num_tokens + shift + kSlab - 1) / kSlab;
  const int warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2;
#pragma unroll 1
  for (int tile = blockIdx.x * kFragmentWarps + warp; tile < num_tiles;
       tile += gridDim.x * kFragmentWarps) {
    int tokens[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      tokens[h] = tile * kSlab - shift + 8 * h + g;
      if (tokens[h] >= num_tokens) tokens[h] = -1;  // before the first: negative already
    }
    RawRows<kHeadDim, 2> raw;
    raw.load(job, tokens);
    std::int64_t copies[2];
    copy_slots_of<2>(params, tokens, copies);
    const bool has_copies = any_copy<2>(copies);
    RowFragments<kTiles, 2> v;
    if constexpr (kTransform) {
      const bool has_mean = job.side.mean != nullptr;
      if (has_copies && has_mean) {
        // A copy holds the row itself.
        transform_fragments<kHeadDim, 2, kTiles>(v, raw, job, tokens, false, parts, head.num_parts,
                                                 head.unit, 0);
        copy_rows<kHeadDim, 2>(v, job, copies);
      }
      transform_fragments<kHeadDim, 2, kTiles>(v, raw, job, tokens, has_mean, parts,
                                               head.num_parts, head.unit, 0);
      if (has_copies && !has_mean) copy_rows<kHeadDim, 2>(v, job, copies);
    } else {
      widen_rows<kHeadDim, 2>(v, raw);
      if (has_copies) copy_rows<kHeadDim, 2>(v, job, copies);
    }
    encode_fragments<kHeadDim, 2>(v, job, rules, guess, tokens);
  }
}

// Few tokens: a block takes eight rows, its warps share the columns of the transform. grid: (tokens
// / 8, heads, sides).
template <int kHeadDim, bool kTransform>
__global__ void __launch_bounds__(32 * kFewWarps)
    encode_few_kernel(const __grid_constant__ EncodeParams params) {
  constexpr int kTiles = kHeadDim / 8, kCount = kTiles / kFewWarps, kStride = kHeadDim + 8;
  __shared__ float rotated[2][kFewTokens][kStride];  // rows to code, rows to copy
  const int side_index = blockIdx.z, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int g = lane >> 2, t = lane & 3;
  const TileJob job{params, params.sides[side_index], static_cast<int>(blockIdx.y), side_index, 0,
                    0};
  if (job.side.rows == nullptr || (!kTransform && warp != 0)) return;
  int tokens[1] = {static_cast<int>(blockIdx.x) * kFewTokens + g};
  if (tokens[0] >= params.num_tokens) tokens[0] = -1;
  RawRows<kHeadDim, 1> raw;
  raw.load(job, tokens);
  std::int64_t copies[1];
  copy_slots_of<1>(params, tokens, copies);
  const bool has_copies = any_copy<1>(copies);
  const RowRules rules = rules_of(job);
  const RankGuess guess = RankGuess::of(rules.clip_ratio, kHeadDim);
  RowFragments<kTiles, 1> v;
  if constexpr (kTransform) {
    const std::uint8_t* image = static_cast<const std::uint8_t*>(job.side.transform_image) +
                                job.head * transform_head_bytes(kHeadDim);
    const TransformHead head = *reinterpret_cast<const TransformHead*>(image);
    const uint4* parts = reinterpret_cast<const uint4*>(image + sizeof(TransformHead));
    const bool has_mean = job.side.mean != nullptr;
    for (int pass = has_copies && has_mean ? 1 : 0; pass >= 0; --pass) {
      RowFragments<kCount, 1> mine;
      transform_fragments<kHeadDim, 1, kCount>(mine, raw, job, tokens, has_mean && pass == 0, parts,
                                               head.num_parts, head.unit, warp * kCount);
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
        *reinterpret_cast<float2*>(&rotated[pass][g][8 * (warp * kCount + n) + 2 * t]) = {
            mine[n][0], mine[n][1]};
      }
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
      gather(has_mean ? 1 : 0);
      copy_rows<kHeadDim, 1>(v, job, copies);
    }
    if (warp != 0) return;
    gather(0);
  } else {
    widen_rows<kHeadDim, 1>(v, raw);
    if (has_copies) copy_rows<kHeadDim, 1>(v, job, copies);
  }
  encode_fragments<kHeadDim, 1>(v, job, rules, guess, tokens);
}

}  // namespace oscar::cuda::encode

// A warp's rows as matrix fragments: widened as they are, or transformed on tensor cores.
#pragma once

#include <type_traits>

#include "cuda/encode/kernel.cuh"
#include "cuda/encode/rank_search.cuh"
#include "cuda/encode/transform_image.h"
#include "cuda/ptx/memory.h"

namespace oscar::cuda::encode {

// kHalves: 1 for rows g, 2 for rows g and g + 8 of a matrix tile.
template <int kTiles, int kHalves>
using RowFragments = float[kTiles][2 * kHalves];

// Eight channels less the mean, as BF16 and what BF16 leaves of them.
struct SplitWords {
  uint4 high, low;
};
__device__ __forceinline__ SplitWords subtract_mean(const TileJob& job, int token, uint4 raw,
                                                    int channel) {
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

// First of a lane's raw values of a row: 8 neighbouring channels of each 32.
__device__ __forceinline__ const bf16_t* lane_row(const TileJob& job, int token) {
  return job.side.rows + std::int64_t{token < 0 ? 0 : token} * job.side.token_stride +
         job.head * job.side.head_stride + (threadIdx.x & 3) * 8;
}

// A lane's values of row g, in registers.
template <int kHeadDim>
struct RawRow {
  uint4 high[kHeadDim / 32], low[kHeadDim / 32];

  __device__ __forceinline__ void load(const TileJob& job, int token) {
#pragma unroll
    for (int j = 0; j < kHeadDim / 32; ++j) {
      high[j] = token < 0 ? uint4{0, 0, 0, 0}
                          : __ldcs(reinterpret_cast<const uint4*>(lane_row(job, token) + 32 * j));
    }
  }
  __device__ __forceinline__ void subtract(const TileJob& job, int token) {
#pragma unroll
    for (int j = 0; j < kHeadDim / 32; ++j) {
      const SplitWords split = subtract_mean(job, token, high[j], 32 * j + 8 * (threadIdx.x & 3));
      high[j] = split.high;
      low[j] = split.low;
    }
  }
  __device__ __forceinline__ uint4 words(int, int j) const { return high[j]; }
  __device__ __forceinline__ uint4 rest(int, int j) const { return low[j]; }
};

// A lane's values of rows g and g + 8, in this thread's part of shared memory: fetched early, so
// that loading takes no registers. Pieces of 16 bytes, kThreads of them apart.
template <int kHeadDim, int kThreads>
struct StagedRows {
  static constexpr int kPieces = kHeadDim / 32;
  uint32_t values, leftovers;  // addresses of the first piece

  __device__ __forceinline__ static uint32_t offset(int h, int j) {
    return static_cast<uint32_t>((h * kPieces + j) * kThreads * 16);
  }
  __device__ __forceinline__ void fetch(const TileJob& job, const int (&tokens)[2]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const bf16_t* row = lane_row(job, tokens[h]);
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        ptx::copy_async_16(values + offset(h, j), row + 32 * j, tokens[h] < 0 ? 0 : 16);
      }
    }
  }
  __device__ __forceinline__ void subtract(const TileJob& job, const int (&tokens)[2]) const {
#pragma unroll 1
    for (int piece = 0; piece < 2 * kPieces; ++piece) {
      const uint32_t at = offset(0, piece);
      const SplitWords split = subtract_mean(
          job, piece < kPieces ? tokens[0] : tokens[1], ptx::load_shared_16(values + at),
          32 * (piece % kPieces) + 8 * static_cast<int>(threadIdx.x & 3));
      ptx::store_shared_16(values + at, split.high);
      ptx::store_shared_16(leftovers + at, split.low);
    }
  }
  __device__ __forceinline__ uint4 words(int h, int j) const {
    return ptx::load_shared_16(values + offset(h, j));
  }
  __device__ __forceinline__ uint4 rest(int h, int j) const {
    return ptx::load_shared_16(leftovers + offset(h, j));
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
template <int kHeadDim, int kHalves, typename Rows>
__device__ __forceinline__ void widen_rows(RowFragments<kHeadDim / 8, kHalves>& v,
                                           const Rows& rows) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int one_of[2] = {g, g - 4};
#pragma unroll
  for (int j = 0; j < kHeadDim / 32; ++j) {
    uint4 words[kHalves];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) words[h] = rows.words(h, j);
    const auto add = [&](auto first, int i) {
      // Channel 8·quarter + 4i + 2r + {0, 1} is column g of its tile.
      const uint32_t one = one_of[i] & 1 ? 0x3f800000u : 0x3f80u;
      const uint32_t b0 = one_of[i] >> 1 == 0 ? one : 0u, b1 = one_of[i] >> 1 == 1 ? one : 0u;
#pragma unroll
      for (int quarter = 0; quarter < 4; ++quarter) {
        multiply<first(), kHeadDim / 8, kHalves>(v, 4 * j + quarter, operand_of<kHalves>(words, i),
                                                 t == quarter ? b0 : 0u, t == quarter ? b1 : 0u);
      }
    };
    add(std::true_type{}, 0);
    add(std::false_type{}, 1);
  }
}

// Rows times the matrix of `image` (its parts in shared or global memory), for column tiles [begin,
// begin + kCount). kRest: what BF16 leaves of the rows is added.
template <int kHeadDim, int kHalves, int kCount, bool kRest, typename Rows>
__device__ __forceinline__ void transform_fragments(RowFragments<kCount, kHalves>& v,
                                                    const Rows& raw, const uint4* parts,
                                                    int num_parts, float unit, int begin) {
  constexpr int kPairs = kHeadDim / 16;
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int j = 0; j < kHeadDim / 32; ++j) {
    uint4 rows[kHalves];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) rows[h] = raw.words(h, j);
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
    if constexpr (kRest) {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) rows[h] = raw.rest(h, j);
      add(std::false_type{}, rows, 0);
    }
  }
  if (unit != 1.0f) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
#pragma unroll
      for (int k = 0; k < 2 * kHalves; ++k) v[n][k] *= unit;
    }
  }
}

}  // namespace oscar::cuda::encode

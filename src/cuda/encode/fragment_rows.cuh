// A warp's rows as matrix fragments: widened as they are, or transformed on tensor cores.
#pragma once

#include "cuda/encode/rank_search.cuh"
#include "cuda/encode/row_mean.cuh"
#include "cuda/encode/transform_image.h"
#include "cuda/ptx/memory.h"

namespace oscar::cuda::encode {

// kHalves: 1 for rows g, 2 for rows g and g + 8 of a matrix tile.
template <int kTiles, int kHalves>
using RowFragments = float[kTiles][2 * kHalves];

// Pairs of BF16 in fragment order: channels 8n + 2t, 8n + 2t + 1 of rows g (and g + 8).
template <int kTiles, int kHalves>
using RowWords = uint32_t[kHalves][kTiles];

template <int kTiles, int kHalves>
__device__ __forceinline__ void widen_words(RowFragments<kTiles, kHalves>& v,
                                            const RowWords<kTiles, kHalves>& words) {
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      v[n][2 * h] = ptx::low_bf16(words[h][n]);
      v[n][2 * h + 1] = ptx::high_bf16(words[h][n]);
    }
  }
}

// One row; word(n): its channels 8n + 2t and 8n + 2t + 1.
template <int kTiles, typename Word>
__device__ __forceinline__ void widen_row(RowFragment<kTiles>& row, Word word) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const uint32_t pair = word(n);
    row[n][0] = ptx::low_bf16(pair);
    row[n][1] = ptx::high_bf16(pair);
  }
}

__device__ __forceinline__ const bf16_t* row_of(const TileJob& job, int token) {
  return job.side.rows + std::int64_t{token < 0 ? 0 : token} * job.side.token_stride +
         job.head * job.side.head_stride;
}

// A lane's values of row g, in registers.
template <int kHeadDim>
struct RawRow {
  static constexpr int kHalves = 1;
  uint32_t high[kHeadDim / 8], low[kHeadDim / 8];

  __device__ __forceinline__ void load(const bf16_t* row) {
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      high[n] = row == nullptr
                    ? 0u
                    : __ldg(reinterpret_cast<const uint32_t*>(row) + 4 * n + (threadIdx.x & 3));
    }
  }
  template <MeanKind kKind>
  __device__ __forceinline__ void subtract_as(const RowMean<kHeadDim>& mean, int) {
    constexpr int kHalf = kHeadDim / 16;
#pragma unroll
    for (int n = 0; n < kHalf; ++n) {
      uint2 a[1], b[1];
      mean.template subtract<kKind, 1>({high[n]}, {high[n + kHalf]},
                                       8 * n + 2 * static_cast<int>(threadIdx.x & 3), a, b);
      high[n] = a[0].x;
      low[n] = a[0].y;
      high[n + kHalf] = b[0].x;
      low[n + kHalf] = b[0].y;
    }
  }
  __device__ __forceinline__ void words(RowWords<kHeadDim / 8, 1>& to) const {
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) to[0][n] = high[n];
  }
  // Operand A of a k step; `rest` of what BF16 leaves of rows less the mean.
  __device__ __forceinline__ uint4 operand(int step) const {
    return {high[2 * step], 0, high[2 * step + 1], 0};
  }
  __device__ __forceinline__ uint4 rest(int step) const {
    return {low[2 * step], 0, low[2 * step + 1], 0};
  }
};

// Sixteen rows in shared memory, a warp's own: fetched early, so that loading takes no registers.
// Pieces of 16 bytes are swizzled by their row, so that no two rows' meet in a bank.
template <int kHeadDim>
struct TileRows {
  static constexpr int kHalves = 2;
  static constexpr int kRowBytes = 2 * kHeadDim, kBytes = 16 * kRowBytes;
  uint32_t values, leftovers;  // addresses

  // Of a lane's piece j of row g + 8h, which holds channels 32j + 8t to + 7.
  static __device__ __forceinline__ uint32_t piece(int h, int j) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    return (8 * h + g) * kRowBytes + ((4 * j + t) ^ g) * 16;
  }
  __device__ __forceinline__ void fetch(const TileJob& job, const int (&tokens)[2]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const bf16_t* row = row_of(job, tokens[h]) + (threadIdx.x & 3) * 8;
#pragma unroll
      for (int j = 0; j < kHeadDim / 32; ++j) {
        ptx::copy_async_16(values + piece(h, j), row + 32 * j, tokens[h] < 0 ? 0 : 16);
      }
    }
  }
  // Row g + 8h: `from` is the lane's first piece of 16 bytes. Not there: zeros instead.
  __device__ __forceinline__ void fetch(int h, const bf16_t* from, bool is_there) const {
#pragma unroll
    for (int j = 0; j < kHeadDim / 32; ++j) {
      ptx::copy_async_16(values + piece(h, j), from + 32 * j, is_there ? 16 : 0);
    }
  }
  // What was fetched, for all lanes of the warp.
  static __device__ __forceinline__ void wait() {
    ptx::copy_async_wait();
    __syncwarp();
  }
  // Less their means. Not inlined: of every kind, and registers are scarce around it.
  __device__ __noinline__ void subtract(const TileJob& job, const int (&tokens)[2]) const {
#pragma unroll 1
    for (int h = 0; h < 2; ++h) {
      subtract_as_kind(*this, RowMean<kHeadDim>::of(job, h ? tokens[1] : tokens[0]), h);
    }
    __syncwarp();
  }
  // The same where one mean serves all rows.
  __device__ __forceinline__ void subtract_static(const TileJob& job) const {
    const RowMean<kHeadDim> mean = RowMean<kHeadDim>::of(job, -1);
#pragma unroll 1
    for (int h = 0; h < 2; ++h) subtract_as<MeanKind::kStatic>(mean, h);
    __syncwarp();
  }
  // The same of a slab's rows, after means.begin().
  __device__ __forceinline__ void subtract_slab(const SlabMeans<kHeadDim>& means) const {
    const int row = (threadIdx.x & 31) >> 2;
#pragma unroll 1
    for (int h = 0; h < 2; ++h) {
      each_piece_of(h, [&](const uint4& x, const uint4& y, int j, uint2(&a)[4], uint2(&b)[4]) {
        means.subtract(x, y, 8 * h + row, j, a, b);
      });
    }
    __syncwarp();
  }
  template <MeanKind kKind>
  __device__ __forceinline__ void subtract_as(const RowMean<kHeadDim>& mean, int h) const {
    each_piece_of(h, [&](const uint4& x, const uint4& y, int j, uint2(&a)[4], uint2(&b)[4]) {
      mean.template subtract<kKind, 4>({x.x, x.y, x.z, x.w}, {y.x, y.y, y.z, y.w},
                                       32 * j + 8 * static_cast<int>(threadIdx.x & 3), a, b);
    });
  }
  __device__ __forceinline__ void words(RowWords<kHeadDim / 8, 2>& to) const {
    const int lane = threadIdx.x & 31, g = lane >> 2;
    const uint32_t row = values + g * kRowBytes + (lane & 3) * 4;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        to[h][n] = ptx::load_shared_4(row + h * 8 * kRowBytes + n / 8 * 128 + (n % 8 ^ g) * 16);
      }
    }
  }
  // Row g + 8h.
  __device__ __forceinline__ void widen(int h, RowFragment<kHeadDim / 8>& half) const {
    const int lane = threadIdx.x & 31, g = lane >> 2;
    const uint32_t row = values + (8 * h + g) * kRowBytes + (lane & 3) * 4;
    widen_row(half,
              [=](int n) { return ptx::load_shared_4(row + n / 8 * 128 + (n % 8 ^ g) * 16); });
  }
  __device__ __forceinline__ void widen(RowFragments<kHeadDim / 8, 2>& v) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      RowFragment<kHeadDim / 8> half;
      widen(h, half);
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        v[n][2 * h] = half[n][0];
        v[n][2 * h + 1] = half[n][1];
      }
    }
  }
  __device__ __forceinline__ uint4 operand(int step) const { return matrix(values, step); }
  __device__ __forceinline__ uint4 rest(int step) const { return matrix(leftovers, step); }

 private:
  // Replaces the lane's words of both halves of row g + 8h by BF16 and what it leaves: f(words of
  // the first half, of the second, j, a, b), of pieces j.
  template <typename F>
  __device__ __forceinline__ void each_piece_of(int h, F f) const {
    constexpr int kPieces = kHeadDim / 64;  // of half a row
#pragma unroll 1
    for (int j = 0; j < kPieces; ++j) {
      const uint32_t at[2] = {piece(h, j), piece(h, j + kPieces)};
      uint2 a[4], b[4];
      f(ptx::load_shared_16(values + at[0]), ptx::load_shared_16(values + at[1]), j, a, b);
      ptx::store_shared_16(values + at[0], {a[0].x, a[1].x, a[2].x, a[3].x});
      ptx::store_shared_16(leftovers + at[0], {a[0].y, a[1].y, a[2].y, a[3].y});
      ptx::store_shared_16(values + at[1], {b[0].x, b[1].x, b[2].x, b[3].x});
      ptx::store_shared_16(leftovers + at[1], {b[0].y, b[1].y, b[2].y, b[3].y});
    }
  }
  // Lane l gives row l % 16, channels 16·step + 8·(l / 16) on.
  static __device__ __forceinline__ uint4 matrix(uint32_t base, int step) {
    const int lane = threadIdx.x & 31, row = lane & 15, piece = 2 * step + (lane >> 4);
    return ptx::load_matrix_x4(base + row * kRowBytes + (piece ^ (row & 7)) * 16);
  }
};

// v += rows times one part of an image, for column tiles [begin, begin + kCount).
template <int kHeadDim, int kHalves, int kCount, typename Operand>
__device__ __forceinline__ void add_product(float (&c)[kCount][4], Operand operand,
                                            const uint4* part, int begin) {
  constexpr int kPairs = kHeadDim / 16;
  const int lane = threadIdx.x & 31;
  // Sixteen rows take nearly all registers: fewer loads of the image in flight.
  constexpr int kUnroll = kHalves == 1 ? kHeadDim / 16 : 2;
#pragma unroll kUnroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
    const uint4 a = operand(step);
    const uint4* b = part + (step * kPairs + begin / 2) * 32;
#pragma unroll
    for (int pair = 0; pair < kCount / 2; ++pair) {
      const uint4 x = b[pair * 32 + lane];
      ptx::mma_bf16(c[2 * pair], a, x.x, x.y);
      ptx::mma_bf16(c[2 * pair + 1], a, x.z, x.w);
    }
  }
}

// Rows times the matrix of `image` (its parts in shared or global memory), for column tiles [begin,
// begin + kCount). kRest: what BF16 leaves of the rows is added.
template <int kHeadDim, int kHalves, int kCount, bool kRest, typename Rows>
__device__ __forceinline__ void transform_fragments(RowFragments<kCount, kHalves>& v,
                                                    const Rows& raw, const uint4* parts,
                                                    int num_parts, float unit, int begin) {
  static_assert(Rows::kHalves == kHalves);
  constexpr int kPartPieces = kHeadDim * kHeadDim / 8;
  float c[kCount][4] = {};
#pragma unroll 1
  for (int part = 0; part < num_parts; ++part) {
    add_product<kHeadDim, kHalves, kCount>(
        c, [&](int step) { return raw.operand(step); }, parts + part * kPartPieces, begin);
  }
  if constexpr (kRest) {
    add_product<kHeadDim, kHalves, kCount>(
        c, [&](int step) { return raw.rest(step); }, parts, begin);
  }
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
#pragma unroll
    for (int k = 0; k < 2 * kHalves; ++k) v[n][k] = c[n][k] * unit;
  }
}

}  // namespace oscar::cuda::encode

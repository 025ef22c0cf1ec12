// Rows less their mean, as BF16 and what BF16 leaves of them. The mean of a key is before RoPE: the
// two channels of a pair are turned together, by angles that both halves of a row share.
#pragma once

#include "cuda/encode/kernel.cuh"
#include "cuda/ptx/memory.h"
#include "cuda/ptx/scalar.h"

namespace oscar::cuda::encode {

// Two channels as BF16 (x) and what BF16 leaves of them (y).
__device__ __forceinline__ uint2 split_pair(float a, float b) {
  const uint32_t high = ptx::pack_bf16(a, b);
  return {high, ptx::pack_bf16(a - ptx::low_bf16(high), b - ptx::high_bf16(high))};
}

// Two channels of a pair turned by an angle, given as cosine and sine: every product and sum as
// written, so that all kernels agree. A mean is turned by its page's start (hi), then by its
// token's place in the page (lo): tokens of a page share the first.
__device__ __forceinline__ float2 turned(float2 pair, float2 by) {
  return {__fmaf_rn(pair.x, by.x, -__fmul_rn(pair.y, by.y)),
          __fmaf_rn(pair.x, by.y, __fmul_rn(pair.y, by.x))};
}
__device__ __forceinline__ float2 turned_mean(float2 mean, float2 lo, float2 hi) {
  return turned(turned(mean, hi), lo);
}

// Two channels of a row less those of its mean.
__device__ __forceinline__ uint2 difference(uint32_t raw, float2 m) {
  return split_pair(__fsub_rn(ptx::low_bf16(raw), m.x), __fsub_rn(ptx::high_bf16(raw), m.y));
}

enum class MeanKind { kStatic, kHalves, kInterleaved, kGeneral };

// Calls rows.subtract_as<kind>(mean, h): what depends on the kind alone is decided once, not once a
// channel, so that a row's loads need not wait for one another.
template <typename Rows, typename Mean>
__device__ __forceinline__ void subtract_as_kind(Rows& rows, const Mean& mean, int h) {
  switch (mean.kind) {
    case MeanKind::kStatic: rows.template subtract_as<MeanKind::kStatic>(mean, h); break;
    case MeanKind::kHalves: rows.template subtract_as<MeanKind::kHalves>(mean, h); break;
    case MeanKind::kInterleaved: rows.template subtract_as<MeanKind::kInterleaved>(mean, h); break;
    case MeanKind::kGeneral: rows.template subtract_as<MeanKind::kGeneral>(mean, h); break;
  }
}

// The mean of one token's row.
template <int kHeadDim>
struct RowMean {
  using Kind = MeanKind;
  const TileJob& job;
  int token;
  Kind kind;
  const float* mean;      // [kHeadDim] of the head
  const float4 *lo, *hi;  // cosines and sines, two pairs each

  // Of rows without a mean.
  __device__ __forceinline__ static RowMean none(const TileJob& job) {
    return {job, 0, Kind::kStatic, nullptr, nullptr, nullptr};
  }
  // token < 0: any.
  __device__ __forceinline__ static RowMean of(const TileJob& job, int token) {
    const EncodeParams& p = job.params;
    RowMean row{job,     max(token, 0), Kind::kStatic, job.side.mean + job.head * kHeadDim,
                nullptr, nullptr};
    if (job.side_index != 0 || p.num_pairs == 0) return row;
    row.kind = 2 * p.num_pairs != kHeadDim ? Kind::kGeneral
               : p.interleaved             ? Kind::kInterleaved
                                           : Kind::kHalves;
    const int position = p.positions[row.token];
    row.lo =
        reinterpret_cast<const float4*>(p.rope_tile + position % kPageTokens * p.num_pairs * 2);
    row.hi = reinterpret_cast<const float4*>(p.rope_start + std::int64_t{position / kPageTokens} *
                                                                p.num_pairs * 2);
    return row;
  }

  // first: channels c to c + 2·kWords − 1 of the row, second: those kHeadDim / 2 on; c a multiple
  // of 2·kWords and below kHeadDim / 2.
  template <Kind kKind, int kWords>
  __device__ __forceinline__ void subtract(const uint32_t (&first)[kWords],
                                           const uint32_t (&second)[kWords], int c,
                                           uint2 (&a)[kWords], uint2 (&b)[kWords]) const {
    constexpr int kHalf = kHeadDim / 2;
    if constexpr (kKind == Kind::kHalves) {
      float2 m[kWords], n[kWords];
      float4 x[kWords], y[kWords];
      load_pairs(c, m);
      load_pairs(c + kHalf, n);
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        x[w] = __ldg(lo + c / 2 + w);
        y[w] = __ldg(hi + c / 2 + w);
      }
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        const float2 even = turned_mean({m[w].x, n[w].x}, {x[w].x, x[w].y}, {y[w].x, y[w].y});
        const float2 odd = turned_mean({m[w].y, n[w].y}, {x[w].z, x[w].w}, {y[w].z, y[w].w});
        a[w] = difference(first[w], {even.x, odd.x});
        b[w] = difference(second[w], {even.y, odd.y});
      }
    } else {
      float2 m[kWords], n[kWords];
      mean_of<kKind>(c, m);
      mean_of<kKind>(c + kHalf, n);
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        a[w] = difference(first[w], m[w]);
        b[w] = difference(second[w], n[w]);
      }
    }
  }

 private:
  // The mean's channels from c on, not turned.
  template <int kWords>
  __device__ __forceinline__ void load_pairs(int c, float2 (&m)[kWords]) const {
    if constexpr (kWords % 2 == 0) {
#pragma unroll
      for (int w = 0; w < kWords; w += 2) {
        const float4 x = __ldg(reinterpret_cast<const float4*>(mean + c) + w / 2);
        m[w] = {x.x, x.y};
        m[w + 1] = {x.z, x.w};
      }
    } else {
#pragma unroll
      for (int w = 0; w < kWords; ++w) m[w] = __ldg(reinterpret_cast<const float2*>(mean + c) + w);
    }
  }
  template <Kind kKind, int kWords>
  __device__ __forceinline__ void mean_of(int c, float2 (&m)[kWords]) const {
    if constexpr (kKind == Kind::kGeneral) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        m[w] = {mean_at(job, token, c + 2 * w), mean_at(job, token, c + 2 * w + 1)};
      }
      return;
    }
    load_pairs(c, m);
    if constexpr (kKind == Kind::kInterleaved) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        const float2 x = __ldg(reinterpret_cast<const float2*>(lo) + c / 2 + w);
        const float2 y = __ldg(reinterpret_cast<const float2*>(hi) + c / 2 + w);
        m[w] = turned_mean(m[w], x, y);
      }
    }
  }
};

// Means of kind kHalves for the sixteen tokens of a slab: the cosines and sines of the slab's
// places in a page, in shared memory once a block, and the head's mean turned by a page's start,
// once a tile. The same sums as RowMean.
template <int kHeadDim>
struct SlabMeans {
  static constexpr int kPieces = kHeadDim / 4;  // of two pairs
  static constexpr int kTableBytes = kSlab * kPieces * 16, kWarpBytes = kPieces * 16;
  uint32_t table, mean;  // addresses
  int first;             // place of the table's first row in its page; −1: no table

  // Piece 16j + 4t + w of a row lies where lanes t read it together, and rows g and g + 1 in other
  // banks.
  static __device__ __forceinline__ uint32_t place(int piece, int row) {
    const int order = (piece & ~15) | (piece & 3) << 2 | (piece >> 2 & 3);
    return (order ^ (row & 1) << 2) * 16;
  }
  // Of places first to first + 15, by all threads of a block; first a multiple of 16.
  __device__ __forceinline__ void build_table(const EncodeParams& params) const {
    const float4* rows = reinterpret_cast<const float4*>(params.rope_tile) + first * kPieces;
    for (int i = threadIdx.x; i < kSlab * kPieces; i += blockDim.x) {
      const int row = i / kPieces;
      store(table + row * kWarpBytes + place(i % kPieces, row), __ldg(rows + i));
    }
  }
  // Whether the warp's rows are the tokens of one such slab; then turns the mean by their page's
  // start.
  __device__ __forceinline__ bool begin(const TileJob& job, const int (&tokens)[2]) const {
    if (first < 0) return false;
    const int lane = threadIdx.x & 31;
    bool is_slab = tokens[0] >= 0 && tokens[1] >= 0;
    int start[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      start[h] = is_slab ? job.params.positions[tokens[h]] - 8 * h - (lane >> 2) : 0;
    }
    const int all = __shfl_sync(~0u, start[0], 0);
    is_slab = is_slab && start[0] == all && start[1] == all && all % kPageTokens == first;
    if (!__all_sync(~0u, is_slab)) return false;
    if (lane < kPieces) {
      const float2* means = reinterpret_cast<const float2*>(job.side.mean + job.head * kHeadDim);
      const float2 m = __ldg(means + lane), n = __ldg(means + kPieces + lane);
      const float4 y = __ldg(reinterpret_cast<const float4*>(job.params.rope_start) +
                             std::int64_t{all / kPageTokens} * kPieces + lane);
      const float2 even = turned({m.x, n.x}, {y.x, y.y}), odd = turned({m.y, n.y}, {y.z, y.w});
      store(mean + place(lane, 0), {even.x, even.y, odd.x, odd.y});
    }
    __syncwarp();
    return true;
  }
  // As RowMean::subtract, of row `row` of the slab; a lane has words 16j + 4t + w of a half row.
  __device__ __forceinline__ void subtract(const uint4& first_half, const uint4& second_half,
                                           int row, int j, uint2 (&a)[4], uint2 (&b)[4]) const {
    const uint32_t x[4] = {first_half.x, first_half.y, first_half.z, first_half.w};
    const uint32_t y[4] = {second_half.x, second_half.y, second_half.z, second_half.w};
    const int piece = 16 * j + 4 * static_cast<int>(threadIdx.x & 3);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float4 m = load(mean + place(piece + w, 0));
      const float4 lo = load(table + row * kWarpBytes + place(piece + w, row));
      const float2 even = turned({m.x, m.y}, {lo.x, lo.y}), odd = turned({m.z, m.w}, {lo.z, lo.w});
      a[w] = difference(x[w], {even.x, odd.x});
      b[w] = difference(y[w], {even.y, odd.y});
    }
  }

 private:
  static __device__ __forceinline__ void store(uint32_t address, float4 v) {
    ptx::store_shared_16(address, {__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z),
                                   __float_as_uint(v.w)});
  }
  static __device__ __forceinline__ float4 load(uint32_t address) {
    const uint4 v = ptx::load_shared_16(address);
    return {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
  }
};

}  // namespace oscar::cuda::encode

// Rows less their mean, as BF16 and what BF16 leaves of them. The mean of a key is before RoPE: the
// two channels of a pair are turned together, by angles that both halves of a row share.
#pragma once

#include "cuda/encode/kernel.cuh"
#include "cuda/ptx/scalar.h"

namespace oscar::cuda::encode {

// Two channels as BF16 (x) and what BF16 leaves of them (y).
__device__ __forceinline__ uint2 split_pair(float a, float b) {
  const uint32_t high = ptx::pack_bf16(a, b);
  return {high, ptx::pack_bf16(a - ptx::low_bf16(high), b - ptx::high_bf16(high))};
}

// The mean's channels of one pair at angle lo + hi: every product and sum as written, so that all
// kernels agree.
__device__ __forceinline__ float2 turned_mean(float2 mean, float2 lo, float2 hi) {
  const float cosine = __fmaf_rn(lo.x, hi.x, -__fmul_rn(lo.y, hi.y));
  const float sine = __fmaf_rn(lo.y, hi.x, __fmul_rn(lo.x, hi.y));
  return {__fmaf_rn(mean.x, cosine, -__fmul_rn(mean.y, sine)),
          __fmaf_rn(mean.x, sine, __fmul_rn(mean.y, cosine))};
}

// The mean of one token's row.
template <int kHeadDim>
struct RowMean {
  enum class Kind { kStatic, kHalves, kInterleaved, kGeneral };
  const TileJob& job;
  int token;
  Kind kind;
  const float* mean;      // [kHeadDim] of the head
  const float4 *lo, *hi;  // cosines and sines, two pairs each

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

  // Channels c, c + 1 and c + kHeadDim / 2, + 1 of the row, c even and below kHeadDim / 2.
  __device__ __forceinline__ void subtract(uint32_t first, uint32_t second, int c, uint2& a,
                                           uint2& b) const {
    constexpr int kHalf = kHeadDim / 2;
    if (kind != Kind::kHalves) {
      a = subtract(first, c);
      b = subtract(second, c + kHalf);
      return;
    }
    const float2 m = pair_at(c), n = pair_at(c + kHalf);
    const float4 x = __ldg(lo + c / 2), y = __ldg(hi + c / 2);
    const float2 even = turned_mean({m.x, n.x}, {x.x, x.y}, {y.x, y.y});
    const float2 odd = turned_mean({m.y, n.y}, {x.z, x.w}, {y.z, y.w});
    a = split_pair(__fsub_rn(ptx::low_bf16(first), even.x),
                   __fsub_rn(ptx::high_bf16(first), odd.x));
    b = split_pair(__fsub_rn(ptx::low_bf16(second), even.y),
                   __fsub_rn(ptx::high_bf16(second), odd.y));
  }

 private:
  __device__ __forceinline__ float2 pair_at(int c) const {
    return __ldg(reinterpret_cast<const float2*>(mean + c));
  }
  __device__ __forceinline__ uint2 subtract(uint32_t raw, int c) const {
    float2 m;
    if (kind == Kind::kStatic) {
      m = pair_at(c);
    } else if (kind == Kind::kInterleaved) {
      const float2 x = __ldg(reinterpret_cast<const float2*>(lo) + c / 2);
      const float2 y = __ldg(reinterpret_cast<const float2*>(hi) + c / 2);
      m = turned_mean(pair_at(c), x, y);
    } else {
      m = {mean_at(job, token, c), mean_at(job, token, c + 1)};
    }
    return split_pair(__fsub_rn(ptx::low_bf16(raw), m.x), __fsub_rn(ptx::high_bf16(raw), m.y));
  }
};

}  // namespace oscar::cuda::encode

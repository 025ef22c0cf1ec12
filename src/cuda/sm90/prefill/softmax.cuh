// Softmax state of sixteen query rows of a warp, and a tile's logits to weights.
//
// Lane 4g + t has rows g and g + 8, of a tile's tokens the columns 8j + 2t and 8j + 2t + 1. Outputs
// are in the units of decode's WarpState: value codes where they lie in their bytes, times 2^−24.
#pragma once

#include "cuda/ptx/wgmma.h"
#include "cuda/sm90/decode/config.h"
#include "cuda/sm90/prefill/rows.cuh"

namespace oscar::cuda::sm90 {

using TileLogits = float[kPageTokens / 8][4];
using TileWeights = uint32_t[kPageTokens / 8][2];  // [matrix][row g, row g + 8], pairs of halves

template <class C>
struct RowStates {
  float max[2] = {0, 0};   // log2 units; meaningless while unset
  float sum[2] = {0, 0};   // of this lane's columns
  float zero[2] = {0, 0};  // Σ weight·scale·zero point of them
  float out[C::kHeadDim / 8][4] = {};
  int unset;  // bit h: row g + 8h saw no token yet

  // bound: log2 of the largest weight·scale of this lane's columns, relative to max. Raises max
  // where that passes the limit, and takes it from the logits.
  __device__ __forceinline__ void raise_max(const float (&bound)[2], TileLogits& logits) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float b = fmaxf(bound[h], __shfl_xor_sync(~0u, bound[h], 1));
      b = fmaxf(b, __shfl_xor_sync(~0u, b, 2));
      const bool sees_tokens = b > 0.5f * kMasked;
      float d = b - kWeightTarget;
      if (!(unset >> h & 1)) d = fmaxf(d, 0.0f);
      if (!sees_tokens) d = 0;
      if (sees_tokens) unset &= ~(1 << h);
      const float factor = ptx::exp2_approx(fminf(-d, 120.0f));
      max[h] += d;
      sum[h] *= factor;
      zero[h] *= factor;
#pragma unroll
      for (auto& c : out) {
        c[2 * h] *= factor;
        c[2 * h + 1] *= factor;
      }
#pragma unroll
      for (auto& c : logits) {
        c[2 * h] -= d;
        c[2 * h + 1] -= d;
      }
    }
  }
  // Takes the zero points' part out of the outputs. Codes are not negative, so sums of them grow
  // with the tokens while what is left grows with their root; matrix instructions cut off what lies
  // below a sum's last bit, always to one side.
  __device__ __forceinline__ void centre() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float z = zero[h] + __shfl_xor_sync(~0u, zero[h], 1);
      z += __shfl_xor_sync(~0u, z, 2);
      zero[h] = 0;
#pragma unroll
      for (int n = 0; n < C::kHeadDim / 8; ++n) {
        const float unit = 0x1p-24f * static_cast<float>(1 << C::value_shift(8 * n));
        out[n][2 * h] = fmaf(-z, unit, out[n][2 * h]);
        out[n][2 * h + 1] = fmaf(-z, unit, out[n][2 * h + 1]);
      }
    }
  }
  __device__ __forceinline__ void reduce_columns() {
#pragma unroll
    for (int o = 1; o < 4; o <<= 1) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sum[h] += __shfl_xor_sync(~0u, sum[h], o);
        zero[h] += __shfl_xor_sync(~0u, zero[h], o);
      }
    }
  }
};

// logit → soft_cap·tanh(logit / soft_cap), in log2 units relative to max.
__device__ __forceinline__ float soft_capped(float logit, float max, float cap_log2) {
  const float e = ptx::exp2_approx((logit + max) / cap_log2 * 2.885390081777927f);
  return cap_log2 * (1.0f - 2.0f / (1.0f + e)) - max;
}

// Hides what rows may not read: is_read(row half, column).
template <typename IsRead>
__device__ __forceinline__ void mask_tile(TileLogits& logits, IsRead is_read) {
  const int t = threadIdx.x & 3;
#pragma unroll
  for (int j = 0; j < kPageTokens / 8; ++j) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (!is_read(k / 2, token_of_column(8 * j + 2 * t + k % 2))) logits[j][k] = kMasked;
    }
  }
}

// Scales and zero points of the two tokens that a thread has of eight columns.
struct ColumnScales {
  float scale[2], zero[2];
};
__device__ __forceinline__ ColumnScales load_column_scales(uint32_t address) {
  const uint4 x = ptx::load_shared_16(address);
  return {{__uint_as_float(x.x), __uint_as_float(x.z)},
          {__uint_as_float(x.y), __uint_as_float(x.w)}};
}

// Products with codes to logits in log2 units plus `offsets`. scales: shared address.
__device__ __forceinline__ void scale_logits(TileLogits& logits, const float (&offsets)[2],
                                             const float (&query_sums)[2], uint32_t scales) {
  const uint32_t lane_scales = scales + (threadIdx.x & 3) * 16;
#pragma unroll
  for (int j = 0; j < kPageTokens / 8; ++j) {
    const auto [scale, zero] = load_column_scales(lane_scales + 64 * j);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      logits[j][k] =
          fmaf(fmaf(-zero[k % 2], query_sums[k / 2], logits[j][k]), scale[k % 2], offsets[k / 2]);
    }
  }
}

// Weights of a coded tile times the values' scales, as float16; false: one is beyond the limit (or
// a row saw no token yet), and nothing was added to the state.
template <class C>
__device__ __forceinline__ bool coded_weights(TileWeights& weights, RowStates<C>& state,
                                              const TileLogits& logits, uint32_t scales) {
  const uint32_t lane_scales = scales + C::kScaleBytes + (threadIdx.x & 3) * 16;
  float sum[2] = {0, 0}, zeros[2] = {0, 0}, largest = 0;
#pragma unroll
  for (int j = 0; j < kPageTokens / 8; ++j) {
    const auto [scale, zero] = load_column_scales(lane_scales + 64 * j);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float scaled[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float weight = ptx::exp2_approx(logits[j][2 * h + e]);
        scaled[e] = weight * scale[e];
        sum[h] += weight;
        zeros[h] = fmaf(scaled[e], zero[e], zeros[h]);
        largest = fmaxf(largest, scaled[e]);
      }
      weights[j][h] = ptx::pack_f16(scaled[0], scaled[1]);
    }
  }
  if (__any_sync(~0u, state.unset != 0 || largest > kWeightCeiling)) return false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    state.sum[h] += sum[h];
    state.zero[h] += zeros[h];
  }
  return true;
}

// The bound that raise_max wants, of a coded tile.
template <class C>
__device__ __forceinline__ void coded_bound(float (&bound)[2], const TileLogits& logits,
                                            uint32_t scales) {
  const uint32_t lane_scales = scales + C::kScaleBytes + (threadIdx.x & 3) * 16;
  bound[0] = bound[1] = kMasked;
#pragma unroll
  for (int j = 0; j < kPageTokens / 8; ++j) {
    const uint4 x = ptx::load_shared_16(lane_scales + 64 * j);
    const float scale[2] = {__uint_as_float(x.x), __uint_as_float(x.z)};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float log_scale = ptx::log2_approx(fmaxf(scale[k % 2], 0x1p-40f));
      bound[k / 2] = fmaxf(bound[k / 2], logits[j][k] + log_scale);
    }
  }
}

// Weights of an exact tile as BF16; as coded_weights.
template <class C>
__device__ __forceinline__ bool exact_weights(TileWeights& weights, RowStates<C>& state,
                                              const TileLogits& logits) {
  float sum[2] = {0, 0}, largest = 0;
#pragma unroll
  for (int j = 0; j < kPageTokens / 8; ++j) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float a = ptx::exp2_approx(logits[j][2 * h]);
      const float b = ptx::exp2_approx(logits[j][2 * h + 1]);
      weights[j][h] = ptx::pack_bf16(a, b);
      // The rounded weights, so that numerator and denominator agree.
      sum[h] += ptx::low_bf16(weights[j][h]) + ptx::high_bf16(weights[j][h]);
      largest = fmaxf(largest, fmaxf(a, b));
    }
  }
  if (__any_sync(~0u, state.unset != 0 || largest > kWeightCeiling)) return false;
  state.sum[0] += sum[0];
  state.sum[1] += sum[1];
  return true;
}

__device__ __forceinline__ void exact_bound(float (&bound)[2], const TileLogits& logits) {
  bound[0] = bound[1] = kMasked;
#pragma unroll
  for (const auto& c : logits) {
    bound[0] = fmaxf(bound[0], fmaxf(c[0], c[1]));
    bound[1] = fmaxf(bound[1], fmaxf(c[2], c[3]));
  }
}

}  // namespace oscar::cuda::sm90

// Softmax state of one warp: running maxima, sums, and unnormalised outputs of its query rows.
//
// Lane (g, t) keeps head t of each head tile for the tokens that it sees; `out` holds matrix
// fragments of channels × heads. With one head tile the two columns of a head are summed at the
// end; with two, column 2t is head t of tile 0 and column 2t + 1 of tile 1. `out` is in the units
// of value bytes: chains of codes at weights 4^i (values of 4 bits and levels of trellis codes:
// 16^i) times 2^−24, see values.cuh.
#pragma once

#include "cuda/ptx/scalar.h"
#include "cuda/sm90/decode/config.h"

namespace oscar::cuda::sm90 {

template <class C>
struct WarpState {
  float max[C::kHeadTiles];               // log2 units; meaningless while unset
  float sum[C::kHeadTiles];               // of this lane's tokens
  float zero[C::kChunks][C::kHeadTiles];  // Σ weight·scale·zero point of this lane's tokens
  float out[C::kValueTiles][4];
  int unset;  // bit i: head tile i saw no token yet

  __device__ __forceinline__ void clear() {
    unset = (1 << C::kHeadTiles) - 1;
#pragma unroll
    for (int i = 0; i < C::kHeadTiles; ++i) {
      max[i] = sum[i] = 0;
#pragma unroll
      for (int c = 0; c < C::kChunks; ++c) zero[c][i] = 0;
    }
#pragma unroll
    for (int m = 0; m < C::kValueTiles; ++m) {
#pragma unroll
      for (int k = 0; k < 4; ++k) out[m][k] = 0;
    }
  }

  __device__ __forceinline__ bool is_unset(int i) const { return unset >> i & 1; }

  // bound: log2 of the largest weight·scale relative to max, of this lane's tokens. Raises max so
  // that it becomes kWeightTarget; returns by how much in `raise`, which the caller subtracts from
  // its logits. Rare: not inlined into the loop's hot path by its caller.
  __device__ __forceinline__ void raise_max(const float (&bound)[C::kHeadTiles],
                                            float (&raise)[C::kHeadTiles]) {
#pragma unroll
    for (int i = 0; i < C::kHeadTiles; ++i) {
      float b = bound[i];
#pragma unroll
      for (int o = 4; o < 32; o <<= 1) b = fmaxf(b, __shfl_xor_sync(~0u, b, o));
      const bool sees_tokens = b > 0.5f * kMasked;
      float d = b - kWeightTarget;
      if (!is_unset(i)) d = fmaxf(d, 0.0f);
      if (!sees_tokens) d = 0;
      if (sees_tokens) unset &= ~(1 << i);
      raise[i] = d;
      const float factor = ptx::exp2_approx(fminf(-d, 120.0f));
      max[i] += d;
      sum[i] *= factor;
#pragma unroll
      for (int c = 0; c < C::kChunks; ++c) zero[c][i] *= factor;
#pragma unroll
      for (int m = 0; m < C::kValueTiles; ++m) {
        if constexpr (C::kHeadTiles == 1) {
#pragma unroll
          for (int k = 0; k < 4; ++k) out[m][k] *= factor;
        } else {
          out[m][i] *= factor;
          out[m][2 + i] *= factor;
        }
      }
    }
  }

  // Takes the zero points' part out of the outputs. Codes are not negative, so sums of them grow
  // with the tokens while what is left grows with their root; matrix instructions cut off what lies
  // below a sum's last bit, always to one side.
  __device__ __forceinline__ void centre() {
    float z[C::kChunks][C::kHeadTiles];
#pragma unroll
    for (int c = 0; c < C::kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < C::kHeadTiles; ++i) {
        z[c][i] = zero[c][i] * (C::kAffine ? 1.0f : C::kValueCentre);
        zero[c][i] = 0;
#pragma unroll
        for (int o = 4; o < 32; o <<= 1) z[c][i] += __shfl_xor_sync(~0u, z[c][i], o);
      }
    }
#pragma unroll
    for (int m = 0; m < C::kValueTiles; ++m) {
      // A chain holds its channel's codes and those before it in the byte: Σ 4^i of them.
      constexpr int kOne = (1 << C::kValueStep) - 1;
      const int codes = m % C::kCodesPerByte + 1;
      const float unit = 0x1p-24f * static_cast<float>(((1 << C::kValueStep * codes) - 1) / kOne);
#pragma unroll
      for (int k = 0; k < 4; k += 2) {
        if constexpr (C::kHeadTiles == 1) {
          // The two columns of a head count as their sum.
          out[m][k] = fmaf(-z[m / C::kTilesPerChunk][0], unit, out[m][k] + out[m][k + 1]);
          out[m][k + 1] = 0;
        } else {
          out[m][k] = fmaf(-z[m / C::kTilesPerChunk][0], unit, out[m][k]);
          out[m][k + 1] = fmaf(-z[m / C::kTilesPerChunk][1], unit, out[m][k + 1]);
        }
      }
    }
  }

  // Sums over the lanes that hold other tokens of the same head.
  __device__ __forceinline__ void reduce_lanes() {
#pragma unroll
    for (int i = 0; i < C::kHeadTiles; ++i) {
#pragma unroll
      for (int o = 4; o < 32; o <<= 1) {
        sum[i] += __shfl_xor_sync(~0u, sum[i], o);
#pragma unroll
        for (int c = 0; c < C::kChunks; ++c) {
          zero[c][i] += __shfl_xor_sync(~0u, zero[c][i], o);
        }
      }
    }
  }
};

}  // namespace oscar::cuda::sm90

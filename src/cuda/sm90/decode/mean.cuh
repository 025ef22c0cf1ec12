// The key mean as a logit term, by matrix instructions: a constant table of cosines and sines of a
// page's 64 tokens times coefficients into which the page's position is folded.
//
// Σ_f c·cos(w(S + j)) + d·sin(w(S + j)) = Σ_f a·cos(w·j) + b·sin(w·j) with (a, b) = (c, d) turned
// by w·S. Table and coefficients are float16 pairs high + low (22 bits): logits of a large mean
// stay exact. A head's coefficients take two columns, {high, low}, as its query does for the codes.
#pragma once

#include "cuda/ptx/memory.h"
#include "cuda/ptx/mma.h"
#include "cuda/sm90/decode/keys.cuh"

namespace oscar::cuda::sm90 {

// Shared memory of the term.
template <class C>
struct MeanStore {
  static constexpr int kStride = 2 * kMostMeanPairs + 2;
  uint4* table;         // [steps of 8 pairs][4 slabs][high, low][32 lanes]
  float* coefficients;  // [kRows][kStride] in log2 units, the constant last

  // Once a block: operand words of the table, a thread a lane's word.
  __device__ __forceinline__ void build_table(const AttendParams& params, int thread) const {
    const int num_pairs = params.mean.num_pairs, steps = (num_pairs + 7) / 8;
    const float2* tile = reinterpret_cast<const float2*>(params.mean.tile);
    uint32_t* words = reinterpret_cast<uint32_t*>(table);
#pragma unroll 1
    for (int i = thread; i < steps * 4 * 32 * 4; i += C::kThreads) {
      const int word = i % 4, lane = i / 4 % 32, slab = i / 128 % 4, step = i / 512;
      const int token = 16 * slab + 8 * (word % 2) + lane / 4;
      const int pair = 8 * step + 4 * (word / 2) + lane % 4;
      const float2 x = pair < num_pairs ? tile[token * num_pairs + pair] : float2{0, 0};
      const uint32_t high = ptx::pack_f16(x.x, x.y);
      const int at = ((step * 4 + slab) * 2 * 32 + lane) * 4 + word;
      words[at] = high;
      words[at + 128] = ptx::pack_f16(x.x - ptx::float_from_f16(high & 0xffff),
                                      x.y - ptx::float_from_f16(high >> 16));
    }
  }
  // Once a segment.
  __device__ __forceinline__ void load_coefficients(const AttendParams& params,
                                                    const Segment& segment, int thread) const {
    const int count = 2 * params.mean.num_pairs + 1;
    const float scale = params.scale * kLog2E;
#pragma unroll 1
    for (int i = thread; i < C::kRows * kStride; i += C::kThreads) {
      const int row = i / kStride, k = i % kStride;
      const RowPlace place = RowPlace::of(params, segment, C::kRows, row);
      const bool is_constant = k == kStride - 1;
      float value = 0;
      if (place.is_valid && (is_constant || k < count - 1)) {
        value = params.mean.coefficients[(place.token * params.num_q_heads + place.q_head) * count +
                                         (is_constant ? count - 1 : k)];
      }
      coefficients[i] = value * scale;
    }
  }
  __device__ __forceinline__ float constant(int row) const {
    return coefficients[row * kStride + kStride - 1];
  }
};

// Cosine and sine of a lane's two pairs of a step at the page's first token.
struct PageTurn {
  float2 turns[2];

  // row: shared address of the page's turns.
  __device__ __forceinline__ void load(uint32_t row, int num_pairs, int step, int lane) {
    // Pairs beyond the last have no coefficients.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint2 x =
          ptx::load_shared_8(row + 8 * smaller(8 * step + 4 * i + (lane & 3), num_pairs - 1));
      turns[i] = {__uint_as_float(x.x), __uint_as_float(x.y)};
    }
  }
};

// Adds the term, all but its constant. turns: shared address of the page's turns, which arrived
// with its codes.
template <class C>
__device__ __forceinline__ void add_mean(PageLogits<C>& logits, const AttendParams& params,
                                         const MeanStore<C>& store, uint32_t turns, int lane) {
  const int g = lane >> 2, t = lane & 3;
  float sums[4][C::kHeadTiles][4];
#pragma unroll
  for (int slab = 0; slab < 4; ++slab) {
#pragma unroll
    for (int i = 0; i < C::kHeadTiles; ++i) {
      sums[slab][i][0] = logits[slab][0][i];
      sums[slab][i][2] = logits[slab][1][i];
      sums[slab][i][1] = sums[slab][i][3] = 0;
    }
  }
  const int steps = (params.mean.num_pairs + 7) / 8;
  uint32_t table = ptx::shared_address(store.table) + lane * 16;
#pragma unroll 1
  for (int step = 0; step < steps; ++step, table += 4 * 2 * 512) {
    PageTurn turn;
    turn.load(turns, params.mean.num_pairs, step, lane);
    uint32_t b[C::kHeadTiles][2];
#pragma unroll
    for (int i = 0; i < C::kHeadTiles; ++i) {
      const float* row = store.coefficients + (4 * i + (g >> 1)) * MeanStore<C>::kStride;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float2 c = *reinterpret_cast<const float2*>(row + 2 * (8 * step + 4 * k + t));
        const float2 turned = {c.x * turn.turns[k].x + c.y * turn.turns[k].y,
                               c.y * turn.turns[k].x - c.x * turn.turns[k].y};
        const uint32_t high = ptx::pack_f16(turned.x, turned.y);
        const uint32_t low = ptx::pack_f16(turned.x - ptx::float_from_f16(high & 0xffff),
                                           turned.y - ptx::float_from_f16(high >> 16));
        b[i][k] = g & 1 ? low : high;
      }
    }
#pragma unroll
    for (int slab = 0; slab < 4; ++slab) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const uint4 a = ptx::load_shared_16(table + (slab * 2 + part) * 512);
#pragma unroll
        for (int i = 0; i < C::kHeadTiles; ++i) {
          ptx::mma_f16(sums[slab][i], a, b[i][0], b[i][1]);
        }
      }
    }
  }
#pragma unroll
  for (int slab = 0; slab < 4; ++slab) {
#pragma unroll
    for (int i = 0; i < C::kHeadTiles; ++i) {
      logits[slab][0][i] = sums[slab][i][0] + sums[slab][i][1];
      logits[slab][1][i] = sums[slab][i][2] + sums[slab][i][3];
    }
  }
}

}  // namespace oscar::cuda::sm90

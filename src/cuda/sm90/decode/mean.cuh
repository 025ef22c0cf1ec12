// The key mean as a logit term, by matrix instructions: a constant table of cosines and sines of
// half a page's tokens times coefficients into which the half's position is folded.
//
// Σ_f c·cos(w(S + j)) + d·sin(w(S + j)) = Σ_f a·cos(w·j) + b·sin(w·j) with (a, b) = (c, d) turned
// by w·S. A head's coefficients take the two columns that its query takes for the codes: turned to
// the first half of the page, and to the second. So a product's sums are logits already.
//
// Table and coefficients are float16: 11 bits, where keys with their mean in BF16 have 8. A step of
// pairs with a coefficient above kLargeCoefficient takes what float16 leaves over of both as well
// (22 bits), so that logits of a large mean stay exact.
#pragma once

#include "cuda/ptx/memory.h"
#include "cuda/ptx/mma.h"
#include "cuda/sm90/decode/keys.cuh"

namespace oscar::cuda::sm90 {

// Of a pair, in log2 units. Below it float16 costs a logit 2^−12·4·(1 + 1) a pair at most, 2e-3; a
// step's pairs of that size together 2e-3 in the root mean square.
inline constexpr float kLargeCoefficient = 4.0f;

// z turned back by the angle of m, which has length 1.
__device__ __forceinline__ float2 turned_back(float2 z, float2 m) {
  return {z.x * m.x + z.y * m.y, z.y * m.x - z.x * m.y};
}

// What float16 leaves over of two numbers whose float16 is `high`.
__device__ __forceinline__ uint32_t float16_rest(float2 z, uint32_t high) {
  return ptx::pack_f16(z.x - ptx::float_from_f16(high & 0xffff),
                       z.y - ptx::float_from_f16(high >> 16));
}

// Shared memory of the term.
template <class C>
struct MeanStore {
  static constexpr int kHalfTokens = kPageTokens / 2;
  // Floats of a row of coefficients behind its pairs.
  static constexpr int kConstant = 2 * C::kMostMeanPairs, kLarge = kConstant + 1;
  uint4* table;         // [steps][high, low][2 slabs][32 lanes]
  float* coefficients;  // [kRows][first half, second half][C::kMeanStride] in log2 units; in the
                        // first row, at kLarge: which steps are large, a bit each

  __device__ __forceinline__ uint32_t* large_steps() const {
    return reinterpret_cast<uint32_t*>(coefficients + kLarge);
  }
  // Before load_coefficients, a barrier between.
  __device__ __forceinline__ void clear_large_steps() const { *large_steps() = 0; }

  // Once a block: operand words of the table, a thread a lane's word of both parts. A lane's pairs
  // of a step are 2t and 2t + 1.
  __device__ __forceinline__ void build_table(const AttendParams& params, int thread) const {
    const int num_pairs = params.mean.num_pairs;
    const int steps = (num_pairs + kMeanStepPairs - 1) / kMeanStepPairs;
    const float2* tile = reinterpret_cast<const float2*>(params.mean.tile);
    uint32_t* words = reinterpret_cast<uint32_t*>(table);
#pragma unroll 1
    for (int i = thread; i < steps * 2 * 32 * 4; i += C::kThreads) {
      const int word = i % 4, lane = i / 4 % 32, slab = i / 128 % 2, step = i / 256;
      const int token = 16 * slab + 8 * (word % 2) + lane / 4;
      const int pair = kMeanStepPairs * step + 2 * (lane % 4) + word / 2;
      const float2 x = pair < num_pairs ? tile[token * num_pairs + pair] : float2{0, 0};
      const uint32_t high = ptx::pack_f16(x.x, x.y);
      uint32_t* to = words + step * (C::kMeanStepBytes / 4) + i % (C::kMeanPartBytes / 4);
      to[0] = high;
      to[C::kMeanPartBytes / 4] = float16_rest(x, high);
    }
  }
  // Once a segment.
  __device__ __forceinline__ void load_coefficients(const AttendParams& params,
                                                    const Segment& segment, int thread) const {
    const int num_pairs = params.mean.num_pairs, count = 2 * num_pairs + 1;
    const float2* half_turn =
        reinterpret_cast<const float2*>(params.mean.tile) + kHalfTokens * num_pairs;
    const float scale = params.scale * kLog2E;
    constexpr int kPlaces = C::kMostMeanPairs + 1;  // pairs, and the constant
#pragma unroll 1
    for (int i = thread; i < C::kRows * kPlaces; i += C::kThreads) {
      const int row = i / kPlaces, pair = i % kPlaces;
      const RowPlace place = RowPlace::of(params, segment, C::kRows, row);
      const float* from =
          params.mean.coefficients + (place.token * params.num_q_heads + place.q_head) * count;
      float* to = coefficients + 2 * row * C::kMeanStride;
      if (pair == C::kMostMeanPairs) {
        to[kConstant] = place.is_valid ? from[count - 1] * scale : 0.0f;
        continue;
      }
      float2 first = {0, 0}, second = {0, 0};
      if (place.is_valid && pair < num_pairs) {
        first = {from[2 * pair] * scale, from[2 * pair + 1] * scale};
        second = turned_back(first, half_turn[pair]);
      }
      if (!(first.x * first.x + first.y * first.y <= kLargeCoefficient * kLargeCoefficient)) {
        atomicOr(large_steps(), 1u << (pair / kMeanStepPairs));
      }
      reinterpret_cast<float2*>(to)[pair] = first;
      reinterpret_cast<float2*>(to + C::kMeanStride)[pair] = second;
    }
  }
  __device__ __forceinline__ float constant(int row) const {
    return coefficients[2 * row * C::kMeanStride + kConstant];
  }
};

// A lane's coefficients of a step, turned to the page, as matrix operands.
template <class C>
struct MeanOperands {
  float2 z[C::kHeadTiles][2];
  uint32_t b[C::kHeadTiles][2];

  // row, turns: shared addresses of this lane's coefficients of the first head tile, and of the
  // page's cosine and sine, of two pairs.
  __device__ __forceinline__ void load(uint32_t row, uint32_t turns) {
    const uint4 turn = ptx::load_shared_16(turns);
#pragma unroll
    for (int i = 0; i < C::kHeadTiles; ++i) {
      const uint4 c = ptx::load_shared_16(row + i * (8 * 4) * C::kMeanStride);
      z[i][0] = turned_back({__uint_as_float(c.x), __uint_as_float(c.y)},
                            {__uint_as_float(turn.x), __uint_as_float(turn.y)});
      z[i][1] = turned_back({__uint_as_float(c.z), __uint_as_float(c.w)},
                            {__uint_as_float(turn.z), __uint_as_float(turn.w)});
#pragma unroll
      for (int k = 0; k < 2; ++k) b[i][k] = ptx::pack_f16(z[i][k].x, z[i][k].y);
    }
  }
  __device__ __forceinline__ void take_rest() {
#pragma unroll
    for (int i = 0; i < C::kHeadTiles; ++i) {
#pragma unroll
      for (int k = 0; k < 2; ++k) b[i][k] = float16_rest(z[i][k], b[i][k]);
    }
  }
  // sums += the table's rows of both slabs times this. table: shared address of this lane's words.
  __device__ __forceinline__ void multiply(float (&sums)[2][C::kHeadTiles][4],
                                           uint32_t table) const {
#pragma unroll
    for (int slab = 0; slab < 2; ++slab) {
      const uint4 a = ptx::load_shared_16(table + slab * C::kMeanSlabBytes);
#pragma unroll
      for (int i = 0; i < C::kHeadTiles; ++i) ptx::mma_f16(sums[slab][i], a, b[i][0], b[i][1]);
    }
  }
};

// Adds the term, all but its constant. turns: shared address of the page's turns, cosine and sine
// of every pair at its first token, which arrived with its codes.
template <class C>
__device__ __forceinline__ void add_mean(PageLogits<C>& logits, const AttendParams& params,
                                         const MeanStore<C>& store, uint32_t turns, int lane) {
  const int g = lane >> 2, t = lane & 3;
  float sums[2][C::kHeadTiles][4];
#pragma unroll
  for (int slab = 0; slab < 2; ++slab) {
#pragma unroll
    for (int i = 0; i < C::kHeadTiles; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[slab][i][k] = logits[slab + 2 * (k % 2)][k / 2][i];
    }
  }
  const int num_pairs = params.mean.num_pairs;
  const int steps = (num_pairs + kMeanStepPairs - 1) / kMeanStepPairs;
  const uint32_t large_steps = *store.large_steps();
  const uint32_t table = ptx::shared_address(store.table) + lane * 16;
  const uint32_t row = ptx::shared_address(store.coefficients + g * C::kMeanStride) + 16 * t;
  // Pairs beyond the last have no coefficients.
  const uint32_t last = turns + 8 * (num_pairs - 2);
  turns += 16 * t;
  const auto load = [&](MeanOperands<C>& operands, int step) {
    const uint32_t offset = 8 * kMeanStepPairs * step;
    operands.load(row + offset, turns + offset < last ? turns + offset : last);
  };
  if (large_steps == 0) {
    int step = 0;
#pragma unroll 1
    for (; step + 1 < steps; step += 2) {
      MeanOperands<C> operands[2];
      load(operands[0], step);
      load(operands[1], step + 1);
      operands[0].multiply(sums, table + C::kMeanStepBytes * step);
      operands[1].multiply(sums, table + C::kMeanStepBytes * (step + 1));
    }
    if (step < steps) {
      MeanOperands<C> operands;
      load(operands, step);
      operands.multiply(sums, table + C::kMeanStepBytes * step);
    }
  } else {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      MeanOperands<C> operands;
      load(operands, step);
      operands.multiply(sums, table + C::kMeanStepBytes * step);
      if (!(large_steps >> step & 1)) continue;
      operands.multiply(sums, table + C::kMeanStepBytes * step + C::kMeanPartBytes);
      operands.take_rest();
      operands.multiply(sums, table + C::kMeanStepBytes * step);
    }
  }
#pragma unroll
  for (int slab = 0; slab < 2; ++slab) {
#pragma unroll
    for (int i = 0; i < C::kHeadTiles; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) logits[slab + 2 * (k % 2)][k / 2][i] = sums[slab][i][k];
    }
  }
}

}  // namespace oscar::cuda::sm90

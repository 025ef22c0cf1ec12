// The clip's order statistic of rows in matrix fragments, by counting magnitudes two at a time.
//
// Keys are magnitudes as float16, or whatever orders as positive float16 do: the bits of BF16 too.
// A product of the matches with ones counts them, so that nothing is shuffled; the halves of a tile
// share the accumulators by columns, so that a lane steers one row, its own: row g, or g + 8 in
// lanes of odd t where a warp has two halves.
#pragma once

#include "cuda/encode/match_lines.cuh"
#include "cuda/encode/rank_search.cuh"

namespace oscar::cuda::encode {

// x[h] of the lane's own row.
template <int kHalves, typename T>
__device__ __forceinline__ T own_of(const T (&x)[kHalves]) {
  return kHalves == 2 && (threadIdx.x & 1) ? x[kHalves - 1] : x[0];
}
// From the lanes' own rows to both rows of a lane.
template <int kHalves, typename T>
__device__ __forceinline__ void to_halves(T own, T (&x)[kHalves]) {
  if constexpr (kHalves == 1) {
    x[0] = own;
  } else {
    const int lane = threadIdx.x & 31;
    x[0] = __shfl_sync(~0u, own, lane & 30);
    x[1] = __shfl_sync(~0u, own, lane | 1);
  }
}
// x reduced over the lanes of the own row.
template <int kHalves, typename T, typename Op>
__device__ __forceinline__ T own_reduce(const T (&x)[kHalves], Op op) {
  T mine, sent;
  if constexpr (kHalves == 1) {
    mine = sent = x[0];
  } else {
    mine = own_of<kHalves>(x);
    sent = threadIdx.x & 1 ? x[0] : x[1];
  }
  mine = op(mine, __shfl_xor_sync(~0u, sent, 1));
  return op(mine, __shfl_xor_sync(~0u, mine, 2));
}

// Sum over the own row of pairs get(h, n), n < kTiles, by mma(accumulators, operand). mma
// multiplies by ones.
template <int kTiles, int kHalves, typename Mma, typename Get>
__device__ __forceinline__ float own_total(Mma mma, Get get) {
  float c[2][4] = {};
  if constexpr (kHalves == 2) {
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      mma(c[n / 2 & 1], uint4{get(0, n), get(1, n), get(0, n + 1), get(1, n + 1)});
    }
    const bool is_upper = threadIdx.x & 1;
    return (is_upper ? c[0][2] : c[0][0]) + (is_upper ? c[1][2] : c[1][0]);
  } else {
    // The upper half of a row stands in for the rows g + 8.
    constexpr int kUpper = kTiles / 2;
#pragma unroll
    for (int n = 0; n < kUpper; n += 2) {
      mma(c[n / 2 & 1],
          uint4{get(0, n), get(0, n + kUpper), get(0, n + 1), get(0, n + 1 + kUpper)});
    }
    return c[0][0] + c[0][2] + (c[1][0] + c[1][2]);
  }
}
template <int kTiles, int kHalves, typename Get>
__device__ __forceinline__ float own_total_f16(Get get) {
  return own_total<kTiles, kHalves>(
      [](float(&c)[4], uint4 a) { ptx::mma_f16(c, a, kOnesPair, kOnesPair); }, get);
}
template <int kTiles, int kHalves, typename Get>
__device__ __forceinline__ float own_total_bf16(Get get) {
  constexpr uint32_t kOnes = 0x3f803f80u;
  return own_total<kTiles, kHalves>(
      [](float(&c)[4], uint4 a) { ptx::mma_bf16(c, a, kOnes, kOnes); }, get);
}

// Key k as the float 2^23 + k: sums are rounded to whole keys, and the low bits are the key.
inline constexpr float kKeyBias = 8388608.0f;
__device__ __forceinline__ float biased_key(uint32_t key) {
  return __uint_as_float(0x4b000000u | key);
}
__device__ __forceinline__ uint32_t key_of(float biased) {
  return __float_as_uint(biased) & 0xffffu;
}

// What a search has found of the own row: count(≤ low) < rank ≤ count(≤ high), biased keys. The
// statistic is the smallest key above low (from_below), else the largest up to high; is_second: the
// next to that.
struct KeyBracket {
  float low, high;
  bool from_below, is_second;
};

// kNear: a search ends where the statistic is that near to an end of the bracket, 1 or 2.
template <int kTiles, int kHalves, int kNear>
struct KeySearch {
  static constexpr int kHeadDim = 8 * kTiles;
  // Smaller keys are taken for one another: a row whose statistic they are is out of the ordinary.
  static constexpr float kSmallest = kKeyBias + 0x2800, kLargest = kKeyBias + kLargestKey;
  uint32_t keys[kHalves][kTiles];

  // Narrows every row's bracket until one of its ends is next to the answer, or it is one key wide.
  // first: a biased key to begin with; reach: keys between neighbours there. All lanes of the warp
  // take part until every row is done; narrowing further does no harm.
  __device__ __forceinline__ KeyBracket run(int rank, float first, float reach,
                                            bool is_idle) const {
    // Counts less rank − 0.5: positive from the rank-th key on.
    const float offset = 0.5f - static_cast<float>(rank);
    float low = kSmallest - 1, high = kLargest;
    float count_low = offset, count_high = kHeadDim + offset;
    float middle = fmaxf(first, kSmallest);
#pragma unroll 1
    for (int step = 1;; ++step) {
      const float count = count_at_most(middle) + offset;
      const bool is_high = count > 0;
      high = is_high ? middle : high;
      count_high = is_high ? count : count_high;
      low = is_high ? low : middle;
      count_low = is_high ? count_low : count;
      const float span = high - low;
      const bool is_done = fminf(count_high, -count_low) < kNear || span <= 1 || is_idle;
      if (__all_sync(~0u, is_done)) break;
      // Interpolates at first, then halves; while one side is open, goes on by the spacing of a
      // Gaussian row, further each time.
      float part = -count_low * ptx::reciprocal_approx(count_high - count_low);
      if (step > 4) part = 0.5f;
      float next = fmaf(span, part, low);
      if (step <= 4 && (low < kSmallest || high == kLargest)) next = fmaf(-count, reach, middle);
      middle = fmaxf(low + 1, fminf(next, high - 1));
      reach *= 1.5f;
    }
    // Of the nearer end; where the bracket is one key wide all is high.
    const float distance = fminf(count_high, -count_low);
    return {low, high, distance < kNear && distance<count_high, distance> 1 && distance < kNear};
  }

  // The statistic's key. Distances from the bracket's end modulo 2^16, so that what lies beyond
  // drops out.
  __device__ __forceinline__ uint32_t answer(const KeyBracket& bracket) const {
    const uint32_t limit = !bracket.from_below       ? key_of(bracket.high)
                           : bracket.low < kSmallest ? 0u
                                                     : key_of(bracket.low + 1);
    uint32_t flips[kHalves], offsets[kHalves], nearest[kHalves], second[kHalves];
    to_halves<kHalves>(bracket.from_below ? 0u : ~0u, flips);
    to_halves<kHalves>(bracket.from_below ? 0u - limit : limit + 1, offsets);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const uint32_t offset = twice_low(offsets[h]);
      // keys ^ flips as keys·(±1) + flips: the pipe of minima is the busier one.
      const uint32_t sign = 2 * flips[h] + 1;
      uint32_t best[2] = {~0u, ~0u};
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const uint32_t key = keys[h][n] * sign + flips[h];
        if constexpr (kNear == 2) {
          best[1] = __vminu2(best[1], __viaddmax_u16x2(key, offset, best[0]));
        }
        best[0] = __viaddmin_u16x2(key, offset, best[0]);
      }
      const uint32_t even = best[0] & 0xffffu, odd = best[0] >> 16;
      nearest[h] = min(even, odd);
      second[h] = min(max(even, odd), min(best[1] & 0xffffu, best[1] >> 16));
    }
    uint32_t distance;
    if constexpr (kNear == 1) {
      distance = own_reduce<kHalves>(nearest, [](uint32_t a, uint32_t b) { return min(a, b); });
    } else {
      // Both in a word: the nearest is the higher half's, so that a minimum finds it.
      uint32_t both[kHalves];
#pragma unroll
      for (int h = 0; h < kHalves; ++h) both[h] = second[h] | nearest[h] << 16;
      const uint32_t two = own_reduce<kHalves>(both, [](uint32_t a, uint32_t b) {
        const uint32_t low = min(a, b), high = max(a, b);  // by their nearest
        return (low & 0xffff0000u) | min(low & 0xffffu, high >> 16);
      });
      distance = bracket.is_second ? two & 0xffffu : two >> 16;
    }
    return bracket.from_below ? limit + distance : limit - distance;
  }

 private:
  __device__ __forceinline__ float count_at_most(float key) const {
    uint32_t lines[kHalves], slopes[kHalves];
    to_halves<kHalves>(at_most_line(__float_as_uint(key)), lines);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      slopes[h] = twice_low(lines[h]);
      lines[h] = twice_high(lines[h]);
    }
    return own_total_f16<kTiles, kHalves>(
        [&](int h, int n) { return ptx::fma_saturated_f16x2(keys[h][n], slopes[h], lines[h]); });
  }
};

}  // namespace oscar::cuda::encode

// The clip's order statistic of rows in matrix fragments, exact, by counting on tensor cores.
//
// Lane 4g + t of a warp holds the channels 8n + 2t, 8n + 2t + 1 of row g: half of the accumulator
// layout of m16n8 instructions. Magnitudes rounded to float16 are compared two at a time; a product
// with ones counts the matches of all eight rows, so that nothing is shuffled. Rounding is
// monotone, so a bracket of keys with the right counts holds the exact value.
#pragma once

#include "cuda/ptx/mma.h"
#include "cuda/ptx/scalar.h"

namespace oscar::cuda::encode {

inline constexpr uint32_t kOnesPair = 0x3c003c00u;
inline constexpr int kLargestKey = 0x7bff;  // largest finite float16

// kTiles: head_dim / 8.
template <int kTiles>
using RowFragment = float[kTiles][2];

// Where the rank-th smallest magnitude of a Gaussian row lies, in units of the mean magnitude, and
// by how many keys its neighbours differ.
struct RankGuess {
  int rank;
  float place, key_spacing;

  __device__ __forceinline__ static RankGuess of(float clip_ratio, int head_dim) {
    const int rank = static_cast<int>(ceilf(__fmul_rn(clip_ratio, static_cast<float>(head_dim))));
    RankGuess guess{rank < 1 ? 1 : rank, 0.0f, 0.0f};
    const float x = erfinvf(fminf(static_cast<float>(guess.rank) / head_dim, 0.999f));
    guess.place = 1.7724539f * x;
    const float spacing = 1.5707963f / static_cast<float>(head_dim) * expf(x * x);
    guess.key_spacing = 1024.0f * spacing / guess.place;
    return guess;
  }
};

template <int kTiles>
struct RankSearch {
  uint32_t keys[kTiles];
  float sum;  // of a row's keys; not finite when a value is not, or is beyond float16
  // Keys and counts, whole numbers: count(≤ low) < rank ≤ count(≤ high).
  float low, high, count_low, count_high;

  __device__ __forceinline__ void load(const RowFragment<kTiles>& v) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) keys[n] = ptx::pack_f16(fabsf(v[n][0]), fabsf(v[n][1]));
    sum = row_total([&](int n) { return keys[n]; });
  }
  __device__ __forceinline__ bool is_finite() const { return __float_as_uint(sum) < 0x7f800000u; }

  // Narrows every row's bracket until one of its ends is next to the answer, or it is one key wide.
  // All lanes of the warp take part until every row is done; narrowing further does no harm.
  __device__ __forceinline__ void run(const RankGuess& guess, bool is_live) {
    const float rank = static_cast<float>(guess.rank);
    const bool is_idle = !is_live || !is_finite();
    low = -1;
    high = kLargestKey;
    count_low = 0;
    count_high = 8 * kTiles;
    const float place = fminf(sum * (guess.place / (8 * kTiles)), 60000.0f);
    float middle = static_cast<float>(ptx::f16_from_float(place));
    float reach = guess.key_spacing;  // of a step while the bracket is open, further each time
#pragma unroll 1
    for (int step = 1;; ++step) {
      const float count = count_at_most(middle);
      const bool is_high = count >= rank;
      high = is_high ? middle : high;
      count_high = is_high ? count : count_high;
      low = is_high ? low : middle;
      count_low = is_high ? count_low : count;
      const float span = high - low;
      const bool is_done = count_high == rank || count_low == rank - 1 || span <= 1 || is_idle;
      if (step > 2 && __all_sync(~0u, is_done)) break;
      // Interpolates at first (a step more is rarely needed), then halves; while one side is open,
      // goes on by the spacing of a Gaussian row.
      const bool is_late = step > 4;
      const bool is_open = (low < 0 || high == kLargestKey) && !is_late;
      const float part =
          is_late ? 0.5f
                  : (rank - 0.5f - count_low) * ptx::reciprocal_approx(count_high - count_low);
      const float next = is_open ? fmaf(rank - 0.5f - count, reach, middle) : fmaf(span, part, low);
      middle = fmaxf(low + 1, fminf(truncf(next), high - 1));
      reach *= 1.5f;
    }
  }

  // The exact rank-th smallest magnitude, in all lanes of a row. False when a row's keys do not
  // tell values apart that differ; run() must have finished.
  __device__ __forceinline__ bool resolve(const RowFragment<kTiles>& v, int rank, bool is_live,
                                          float& answer) const {
    const float wanted = static_cast<float>(rank);
    const bool from_below = count_high != wanted && count_low == wanted - 1;
    const bool is_tied = is_live && count_high != wanted && !from_below;
    const uint32_t bits = nearest(v, from_below);
    answer = __uint_as_float(bits);
    if (!__any_sync(~0u, is_tied)) return true;
    const bool is_equal = nearest(v, true) == bits;
    return is_equal || !is_tied;
  }

 private:
  // Sum over a row of the float16 pairs that get(n) gives, in all lanes of the row: tiles of the
  // upper half stand in for the rows g + 8 of the instruction.
  template <typename Get>
  static __device__ __forceinline__ float row_total(Get get) {
    constexpr int kUpper = kTiles / 2;
    float sums[kUpper / 2];
#pragma unroll
    for (int n = 0; n < kUpper; n += 2) {
      float c[4] = {0, 0, 0, 0};
      ptx::mma_f16(c, {get(n), get(n + kUpper), get(n + 1), get(n + 1 + kUpper)}, kOnesPair,
                   kOnesPair);
      sums[n / 2] = c[0] + c[2];
    }
    float total = sums[0] + sums[1];
#pragma unroll
    for (int i = 2; i < kUpper / 2; i += 2) total += sums[i] + sums[i + 1];
    return total;
  }
  // A whole number below 2^16 as an integer, without a conversion.
  static __device__ __forceinline__ uint32_t whole(float key) {
    return __float_as_uint(key + 8388608.0f) & 0xffffu;
  }
  __device__ __forceinline__ float count_at_most(float key) const {
    const uint32_t pair = whole(key) * 0x10001u;
    return row_total([&](int n) { return ptx::at_most_f16x2(keys[n], pair); });
  }

  // Bits of the largest float whose key is at most `key` ≥ 0.
  static __device__ __forceinline__ uint32_t upper_limit(uint32_t key) {
    const float middle = 0.5f * (ptx::float_from_f16(key) + ptx::float_from_f16(key + 1));
    return __float_as_uint(middle) - (key & 1);  // ties go to the even key
  }

  // Bits of the largest magnitude with a key of at most high, or of the smallest with one above
  // low. Twice the distance from the limit, modulo 2^32: beyond the limit it wraps to more than any
  // distance within, and the sign bit drops out.
  __device__ __forceinline__ uint32_t nearest(const RowFragment<kTiles>& v, bool from_below) const {
    const uint32_t limit =
        from_below ? (low < 0 ? 0u : upper_limit(whole(low)) + 1) : upper_limit(whole(high));
    const uint32_t slope = from_below ? 2u : ~1u;  // ±2
    const uint32_t offset = 0u - slope * limit;
    uint32_t best[2] = {~0u, ~0u};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        best[e] = min(best[e], __float_as_uint(v[n][e]) * slope + offset);
      }
    }
    uint32_t distance = min(best[0], best[1]);
    distance = min(distance, __shfl_xor_sync(~0u, distance, 1));
    distance = min(distance, __shfl_xor_sync(~0u, distance, 2));
    return from_below ? limit + distance / 2 : limit - distance / 2;
  }
};

}  // namespace oscar::cuda::encode

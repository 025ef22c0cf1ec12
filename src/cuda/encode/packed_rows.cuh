// Rows in matrix fragments to 2-bit codes, two channels an instruction.
//
// A row is scaled by a power of two of its own, so that its largest magnitude lies in [2^13, 2^14),
// and rounded to float16. What is found by comparing (the clip's order statistic, the codes) is
// found on pairs of float16; what is computed once a row (scale, zero point, the float16 at which a
// code becomes the next) takes the CPU's operations in float32.
//
// BF16 values are exact in float16, but for those 2^−27 of the largest and less, and these are
// closer to zero than any limit of codes: codes of BF16 rows are the CPU's. Rows in float32 would
// differ where a limit lies within half a step of float16: their order statistic and codes are
// taken in float32 (exact_statistic, level_bytes).
//
// A lane works on one whole row for what is once a row, its own: row g, or g + 8 in lanes of odd t
// where a warp has two halves.
#pragma once

#include "cuda/encode/fragment_rows.cuh"
#include "cuda/encode/packed_limits.cuh"
#include "cuda/encode/row_store.cuh"

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
    const T other = __shfl_xor_sync(~0u, own, 1);
    x[0] = threadIdx.x & 1 ? other : own;
    x[1] = threadIdx.x & 1 ? own : other;
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

template <int kTiles, int kHalves>
struct PackedRows {
  static constexpr int kHeadDim = 8 * kTiles;
  static constexpr float kSmallest = 0x1p7f;  // scale of a row that is coded here

  uint32_t x[kHalves][kTiles];
  // Of the own row: the power of two and its inverse, largest and smallest value.
  float factor, inverse_factor, top, bottom;
  bool is_fine;  // false: the general encoder must take the row

  // Rows in float32.
  __device__ __forceinline__ void load(const RowFragments<kTiles, kHalves>& v) {
    // As signed integers the largest is the largest float if one is positive; as unsigned ones, the
    // smallest float if one is negative.
    int tops[kHalves];
    uint32_t bottoms[kHalves];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      tops[h] = 0;
      bottoms[h] = 0;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        tops[h] =
            __vimax3_s32(tops[h], __float_as_int(v[n][2 * h]), __float_as_int(v[n][2 * h + 1]));
        bottoms[h] = __vimax3_u32(bottoms[h], __float_as_uint(v[n][2 * h]),
                                  __float_as_uint(v[n][2 * h + 1]));
      }
    }
    set_factor(tops, bottoms);
    float factors[kHalves];
    to_halves<kHalves>(factor, factors);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        x[h][n] = ptx::pack_f16(v[n][2 * h] * factors[h], v[n][2 * h + 1] * factors[h]);
      }
    }
  }
  // Rows as pairs of BF16.
  __device__ __forceinline__ void load(const uint32_t (&words)[kHalves][kTiles]) {
    int tops[kHalves];
    uint32_t bottoms[kHalves];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      uint32_t top_pair = 0, bottom_pair = 0;
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        top_pair = __vimax3_s16x2(top_pair, words[h][n], words[h][n + 1]);
        bottom_pair = __vimax3_u16x2(bottom_pair, words[h][n], words[h][n + 1]);
      }
      tops[h] = static_cast<int>(max(top_pair << 16, top_pair & 0xffff0000u));
      bottoms[h] = max(bottom_pair << 16, bottom_pair & 0xffff0000u);
    }
    set_factor(tops, bottoms);
    uint32_t factors[kHalves];
    to_halves<kHalves>(__float_as_uint(factor) >> 16, factors);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const uint32_t scaled = ptx::multiply_bf16x2(words[h][n], factors[h] * 0x10001u);
        x[h][n] = ptx::pack_f16(ptx::low_bf16(scaled), ptx::high_bf16(scaled));
      }
    }
  }

  // The rank-th smallest magnitude of the own row, rounded to float16: `key`; from_below: it is the
  // smallest value of that key that was asked for, else the largest. As RankSearch.
  struct Statistic {
    uint32_t key;
    bool from_below;
  };
  __device__ __forceinline__ Statistic order_statistic(const RankGuess& guess, bool is_live) const {
    const float rank = static_cast<float>(guess.rank);
    const bool is_idle = !is_live || !is_fine;
    uint32_t keys[kHalves][kTiles];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) keys[h][n] = x[h][n] & 0x7fff7fffu;
    }
    const float sum = own_total<kTiles / 2>(
        [&](int h, int n) { return ptx::add_f16x2(keys[h][n], keys[h][n + kTiles / 2]); });
    // Whole numbers: count(≤ low) < rank ≤ count(≤ high).
    float low = -1, high = kLargestKey, count_low = 0, count_high = kHeadDim;
    float middle =
        static_cast<float>(ptx::f16_from_float(fminf(sum * (guess.place / kHeadDim), 60000.0f)));
    float reach = guess.key_spacing;  // of a step while the bracket is open, further each time
#pragma unroll 1
    for (int step = 1;; ++step) {
      uint32_t lines[kHalves], slopes[kHalves];
      to_halves<kHalves>(at_most_line(whole(middle)), lines);
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        slopes[h] = twice_low(lines[h]);
        lines[h] = twice_high(lines[h]);
      }
      const float count = own_total<kTiles>(
          [&](int h, int n) { return ptx::fma_saturated_f16x2(keys[h][n], slopes[h], lines[h]); });
      const bool is_high = count >= rank;
      high = is_high ? middle : high;
      count_high = is_high ? count : count_high;
      low = is_high ? low : middle;
      count_low = is_high ? count_low : count;
      const float span = high - low;
      const bool is_done = count_high == rank || count_low == rank - 1 || span <= 1 || is_idle;
      if (__all_sync(~0u, is_done)) break;
      // Interpolates at first, then halves; while one side is open, goes on by the spacing of a
      // Gaussian row.
      float part = (rank - 0.5f - count_low) * ptx::reciprocal_approx(count_high - count_low);
      if (step > 4) part = 0.5f;
      float next = fmaf(span, part, low);
      if (step <= 4 && (low < 0 || high == kLargestKey)) {
        next = fmaf(rank - 0.5f - count, reach, middle);
      }
      middle = fmaxf(low + 1, fminf(__fadd_rn(__fadd_rn(next, kMagic), -kMagic), high - 1));
      reach *= 1.5f;
    }
    // The largest key up to `high`, or the smallest above `low`: distances modulo 2^16, so that
    // what lies beyond drops out.
    const bool from_below = count_high != rank && count_low == rank - 1;
    const uint32_t limit = from_below ? whole(low + 1) : whole(high);
    uint32_t flips[kHalves], offsets[kHalves], distances[kHalves];
    to_halves<kHalves>(from_below ? 0u : 0xffffu, flips);
    to_halves<kHalves>(from_below ? 0u - limit : limit + 1, offsets);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const uint32_t flip = flips[h] * 0x10001u, offset = (offsets[h] & 0xffffu) * 0x10001u;
      uint32_t best = ~0u;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        best = __viaddmin_u16x2(keys[h][n] ^ flip, offset, best);
      }
      distances[h] = min(best & 0xffffu, best >> 16);
    }
    const uint32_t distance =
        own_reduce<kHalves>(distances, [](uint32_t a, uint32_t b) { return min(a, b); });
    return {from_below ? limit + distance : limit - distance, from_below};
  }

  // The same in float32, times factor. load(h, half): row h in float32. Where values of one key are
  // more than the statistic tells apart, the largest of them.
  template <typename Load>
  __device__ __forceinline__ float exact_statistic(const Statistic& s, Load load) const {
    // Bits of the largest float whose key is at most `key`; ties go to the even key.
    const auto upper_limit = [&](uint32_t key) {
      const float middle = 0.5f * (ptx::float_from_f16(key) + ptx::float_from_f16(key + 1));
      return __float_as_uint(middle * inverse_factor) - (key & 1);
    };
    const uint32_t limit = !s.from_below ? upper_limit(s.key)
                           : s.key == 0  ? 0u
                                         : upper_limit(s.key - 1) + 1;
    // Twice the distance from the limit, modulo 2^32: beyond the limit it wraps to more than any
    // distance within, and the sign bit drops out.
    const uint32_t slope = s.from_below ? 2u : ~1u;  // ±2
    uint32_t slopes[kHalves], offsets[kHalves], distances[kHalves];
    to_halves<kHalves>(slope, slopes);
    to_halves<kHalves>(0u - slope * limit, offsets);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      RowFragment<kTiles> half;
      load(h, half);
      uint32_t best[2] = {~0u, ~0u};
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          best[e] = min(best[e], __float_as_uint(half[n][e]) * slopes[h] + offsets[h]);
        }
      }
      distances[h] = min(best[0], best[1]);
    }
    const uint32_t distance =
        own_reduce<kHalves>(distances, [](uint32_t a, uint32_t b) { return min(a, b); });
    const uint32_t bits = s.from_below ? limit + distance / 2 : limit - distance / 2;
    return __uint_as_float(bits) * factor;
  }

  // Scale (times factor) and zero point of the own row. load(h, half): row h in float32.
  template <typename Load>
  __device__ __forceinline__ RowScale choose_scale(const RowRules& rules, float threshold,
                                                   Load load) {
    RowScale s;
    s.top = 3;
    if (rules.affine) {
      const float high = fminf(top, threshold), low = fmaxf(bottom, -threshold);
      s.scale = round_to_bf16(quotient(__fsub_rn(high, low), 3.0f, 1.0f / 3.0f));
      s.inverse = ptx::reciprocal_approx(s.scale);
      s.zero = round_to_bf16(__fsub_rn(0.0f, quotient(low, s.scale, s.inverse)));
      // Smaller ends may not be exact.
      is_fine =
          is_fine && top >= 0x1p-14f && bottom <= -0x1p-14f && s.zero != 0.5f && s.zero != 2.5f;
    } else {
      const float mean_square = __fmul_rn(sum_squares(threshold, load), 1.0f / kHeadDim);
      s.scale = round_to_bf16(__fmul_rn(0.9957f, __fsqrt_rn(mean_square)));
      s.inverse = ptx::reciprocal_approx(s.scale);
      s.zero = 1.5f;
    }
    is_fine = is_fine && s.scale >= kSmallest && is_ordinary_scale(s.scale * inverse_factor);
    s.is_ordinary = is_fine;
    return s;
  }

  // Sum of squares of the own row's values up to ±threshold (times factor), in the CPU's order.
  template <typename Load>
  __device__ __forceinline__ float sum_squares(float threshold, Load load) const {
    float limits[kHalves], sums[2][kHalves];
    to_halves<kHalves>(threshold * inverse_factor, limits);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      RowFragment<kTiles> half;
      load(h, half);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float sum = 0;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const float y = fminf(fabsf(half[n][e]), limits[h]);
          sum = __fadd_rn(sum, __fmul_rn(y, y));
        }
        sums[e][h] = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
      }
    }
    float own[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float sent = sums[e][0];
      if constexpr (kHalves == 2) sent = threadIdx.x & 1 ? sums[e][0] : sums[e][1];
      own[e] = __fadd_rn(own_of<kHalves>(sums[e]), __shfl_xor_sync(~0u, sent, 1));
    }
    return __fadd_rn(own[0], own[1]) * factor * factor;
  }

  // The bytes of every half's row.
  __device__ __forceinline__ void choose_bytes(const RowScale& s, float threshold, int side,
                                               RowBytes (&rows)[kHalves]) const {
    uint32_t first[kHalves], second[kHalves], third[kHalves];
    to_halves<kHalves>(at_least_line(clipped_limit(s, 1, threshold)), first);
    to_halves<kHalves>(clipped_limit(s, 2, threshold), second);
    to_halves<kHalves>(at_least_line(clipped_limit(s, 3, threshold)), third);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const Limits limits{{twice_low(first[h]), twice_low(third[h])},
                          {twice_high(first[h]), twice_high(third[h])},
                          twice_low(second[h])};
      rows[h] = side == 0 ? key_bytes(x[h], limits) : value_bytes(x[h], limits);
    }
  }

  // The same of rows in float32, by their levels; s and threshold in the units of the rows.
  // load(h, half): row h. Returns the fitted scale of the own row where `fit` asks for one, else
  // s.scale.
  template <typename Load>
  __device__ __forceinline__ float level_bytes(const RowScale& s, ScaleFit fit, float threshold,
                                               int side, Load load,
                                               RowBytes (&rows)[kHalves]) const {
    const LevelLine line = level_line(s, threshold);
    float slopes[kHalves], offsets[kHalves], spans[kHalves], firsts[kHalves], middles[kHalves];
    to_halves<kHalves>(line.slope, slopes);
    to_halves<kHalves>(line.offset, offsets);
    to_halves<kHalves>(line.span, spans);
    to_halves<kHalves>(line.first, firsts);
    to_halves<kHalves>(s.zero, middles);
    // Σ x·c and Σ x² or Σ c² of values x and codes less the zero point c: a fit in units of the
    // scale needs no decoded values.
    float products[kHalves] = {}, squares[kHalves] = {};
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      RowFragment<kTiles> half;
      load(h, half);
      CodeFragment<kTiles> codes;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float part = __saturatef(fmaf(half[n][e], slopes[h], offsets[h]));
          codes[n][e] = __float_as_uint(fmaf(part, spans[h], firsts[h]));
        }
      }
      if (fit != ScaleFit::kPlain) {
        const bool is_unbiased = fit == ScaleFit::kUnbiased;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            // Not kMagic + zero at once: at that size a float has no halves.
            const float code = __fsub_rn(__uint_as_float(codes[n][e]), kMagic);
            const float x = half[n][e], c = code - middles[h];
            const float squared = is_unbiased ? x : c;
            products[h] = fmaf(x, c, products[h]);
            squares[h] = fmaf(squared, squared, squares[h]);
          }
        }
      }
      rows[h] = pack_shifted_row<kHeadDim>(codes, side);
    }
    if (fit == ScaleFit::kPlain) return s.scale;
    const auto add = [](float a, float b) { return a + b; };
    const float xc = own_reduce<kHalves>(products, add), second = own_reduce<kHalves>(squares, add);
    const float fitted = fit == ScaleFit::kUnbiased ? __fdiv_rn(second, xc) : __fdiv_rn(xc, second);
    return fitted > 0 && fitted < 0x1p120f ? fitted : s.scale;
  }

 private:
  __device__ __forceinline__ void set_factor(const int (&tops)[kHalves],
                                             const uint32_t (&bottoms)[kHalves]) {
    const int high = own_reduce<kHalves>(tops, [](int a, int b) { return max(a, b); });
    const uint32_t low =
        own_reduce<kHalves>(bottoms, [](uint32_t a, uint32_t b) { return max(a, b); });
    const uint32_t exponent = max(static_cast<uint32_t>(high), low & 0x7fffffffu) >> 23;
    is_fine = exponent >= 67 && exponent <= 187;
    const uint32_t e = min(max(exponent, 67u), 187u);
    factor = __uint_as_float((267 - e) << 23);
    inverse_factor = __uint_as_float((e - 13) << 23);
    top = __int_as_float(high) * factor;
    bottom = __uint_as_float(low) * factor;
  }
  // Sum over the own row of float16 pairs get(h, n), n < kCount.
  template <int kCount, typename Get>
  static __device__ __forceinline__ float own_total(Get get) {
    constexpr int kUpper = kCount / 2;
    float c[2][4] = {};
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      // Columns 2t and 2t + 1 add up the half that lanes t own.
      const bool is_mine = kHalves == 1 || ((threadIdx.x >> 3) & 1) == h;
      const uint32_t ones = is_mine ? kOnesPair : 0u;
#pragma unroll
      for (int n = 0; n < kUpper; n += 2) {
        ptx::mma_f16(c[n / 2 & 1],
                     {get(h, n), get(h, n + kUpper), get(h, n + 1), get(h, n + 1 + kUpper)}, ones,
                     ones);
      }
    }
    return c[0][0] + c[0][2] + (c[1][0] + c[1][2]);
  }
  // A whole number below 2^16 as an integer, without a conversion.
  static __device__ __forceinline__ uint32_t whole(float key) {
    return __float_as_uint(key + 8388608.0f) & 0xffffu;
  }
  // Where codes become 1 and 3 as lines, and 2 as a float16: that one may be next to zero.
  struct Limits {
    uint32_t slopes[2], offsets[2], second;
  };
  // Sum of codes at weights 4^i of tiles first + i·stride, i < 4, over 1024: the low byte of a half
  // is the packed byte.
  static __device__ __forceinline__ uint32_t sum_codes(const uint32_t (&row)[kTiles],
                                                       const Limits& limits, int first,
                                                       int stride) {
    constexpr uint32_t kWeights[4] = {0x3c003c00u, 0x44004400u, 0x4c004c00u, 0x54005400u};
    uint32_t sum = 0x64006400u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t y = row[first + i * stride];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        sum = ptx::fma_f16x2(ptx::fma_saturated_f16x2(y, limits.slopes[k], limits.offsets[k]),
                             kWeights[i], sum);
      }
      sum = ptx::fma_f16x2(ptx::at_least_f16x2(y, limits.second), kWeights[i], sum);
    }
    return sum;
  }
  // The orders of RowPacker::keys and ::values (row_store.cuh).
  static __device__ __forceinline__ RowBytes key_bytes(const uint32_t (&row)[kTiles],
                                                       const Limits& limits) {
    constexpr int kStride = kTiles / 4;
    RowBytes bytes{{0, 0, 0, 0}, 0};
#pragma unroll
    for (int w = 0; w < kStride / 2; ++w) {
      bytes.words[w] = __byte_perm(sum_codes(row, limits, 2 * w, kStride),
                                   sum_codes(row, limits, 2 * w + 1, kStride), 0x6420);
    }
    return bytes;
  }
  static __device__ __forceinline__ RowBytes value_bytes(const uint32_t (&row)[kTiles],
                                                         const Limits& limits) {
    RowBytes bytes{{0, 0, 0, 0}, 0};
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const uint32_t low = sum_codes(row, limits, w, 2);
      if constexpr (kTiles == 16) {
        bytes.words[w] = __byte_perm(low, sum_codes(row, limits, w + 8, 2), 0x6240);
      } else {
        bytes.words[w] = low & 0x00ff00ffu;
      }
    }
    return bytes;
  }
};

}  // namespace oscar::cuda::encode

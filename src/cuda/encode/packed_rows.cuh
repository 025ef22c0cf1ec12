// Rows of a transform, in float32 in matrix fragments, to 2-bit codes.
//
// The clip's order statistic is searched for on pairs of float16, of a row times a power of two of
// its own; the value itself is then found in float32, and so are codes: rounded to float16 the one
// would move scales and zero points to their neighbours in BF16, the other put codes on the other
// side of a limit that lies within half a step.
//
// A lane works on one whole row for what is once a row, its own: row g, or g + 8 in lanes of odd t
// where a warp has two halves.
#pragma once

#include "cuda/encode/fragment_rows.cuh"
#include "cuda/encode/key_search.cuh"
#include "cuda/encode/row_codes.cuh"
#include "cuda/encode/row_store.cuh"

namespace oscar::cuda::encode {

// The code of y in float32 by one saturated product: round(sat(slope·y + offset)·span) + first, the
// code in the low bits (`first` has kMagic added). It differs from the pipeline's only within 2^−20
// of a limit between codes: no divisions, no clip.
struct LevelLine {
  float slope, offset, span, first;
};
// s and threshold in the units of y.
__device__ __forceinline__ LevelLine level_line(const RowScale& s, float threshold) {
  // Without a clip the threshold is beyond what a code can tell.
  const float bound = fminf(threshold, __fmul_rn(s.scale, 1024.0f));
  const float low = static_cast<float>(clamped_code(shifted_level(s, -bound), 3));
  const float high = static_cast<float>(clamped_code(shifted_level(s, bound), 3));
  const float span = high - low;
  const float part = span == 3.0f ? 1.0f / 3.0f : span == 2.0f ? 0.5f : span;  // 1 / span; 0 of 0
  return {s.inverse * part, (s.zero - low) * part, span, low + kMagic};
}

template <int kTiles, int kHalves>
struct PackedRows {
  static constexpr int kHeadDim = 8 * kTiles;
  static constexpr float kSmallest = 0x1p3f;  // scale of a row that is coded here
  using Search = KeySearch<kTiles, kHalves, 1>;

  Search search;
  // Of the own row: the power of two and its inverse, largest and smallest value.
  float factor, inverse_factor, top, bottom;
  bool is_fine;  // false: the general encoder must take the row

  // has_ends: the largest and smallest value are asked for. Without them the power of two is that
  // of the smallest value, so that another may exceed float16: then the sum of keys tells.
  __device__ __forceinline__ void load(const RowFragments<kTiles, kHalves>& v, bool has_ends) {
    // As signed integers the largest is the largest float if one is positive; as unsigned ones, the
    // smallest float if one is negative.
    int tops[kHalves] = {};
    uint32_t bottoms[kHalves];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      bottoms[h] = 0;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        bottoms[h] = __vimax3_u32(bottoms[h], __float_as_uint(v[n][2 * h]),
                                  __float_as_uint(v[n][2 * h + 1]));
      }
    }
    if (has_ends) {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          tops[h] =
              __vimax3_s32(tops[h], __float_as_int(v[n][2 * h]), __float_as_int(v[n][2 * h + 1]));
        }
      }
    }
    set_factor(tops, bottoms, has_ends);
    float factors[kHalves];
    to_halves<kHalves>(factor, factors);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        search.keys[h][n] =
            ptx::pack_f16(fabsf(v[n][2 * h]) * factors[h], fabsf(v[n][2 * h + 1]) * factors[h]);
      }
    }
  }

  // The rank-th smallest magnitude of the own row, in float32, times factor. load(h, half): row h
  // in float32. Where values of one key are more than the statistic tells apart, the largest of
  // them.
  template <typename Load>
  __device__ __forceinline__ float order_statistic(const RankGuess& guess, bool is_live,
                                                   Load load) {
    const float sum =
        own_total_f16<kTiles, kHalves>([&](int h, int n) { return search.keys[h][n]; });
    is_fine = is_fine && sum < 1e7f;
    const uint32_t first = ptx::f16_from_float(fminf(sum * (guess.place / kHeadDim), 60000.0f));
    const KeyBracket bracket =
        search.run(guess.rank, biased_key(first), guess.key_spacing, !is_live || !is_fine);
    // Bits of the largest float whose key is at most `key`; ties go to the even key.
    const auto upper_limit = [&](uint32_t key) {
      const float middle = 0.5f * (ptx::float_from_f16(key) + ptx::float_from_f16(key + 1));
      return __float_as_uint(middle * inverse_factor) - (key & 1);
    };
    const uint32_t limit = !bracket.from_below               ? upper_limit(key_of(bracket.high))
                           : bracket.low < Search::kSmallest ? 0u
                                                             : upper_limit(key_of(bracket.low)) + 1;
    // Twice the distance from the limit, modulo 2^32: beyond the limit it wraps to more than any
    // distance within, and the sign bit drops out.
    const uint32_t slope = bracket.from_below ? 2u : ~1u;  // ±2
    uint32_t slopes[kHalves], offsets[kHalves], distances[kHalves];
    to_halves<kHalves>(slope, slopes);
    to_halves<kHalves>(0u - slope * limit, offsets);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      RowFragment<kTiles> half;
      load(h, half);
      uint32_t best = ~0u;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        best = __vimin3_u32(best, __float_as_uint(half[n][0]) * slopes[h] + offsets[h],
                            __float_as_uint(half[n][1]) * slopes[h] + offsets[h]);
      }
      distances[h] = best;
    }
    const uint32_t distance =
        own_reduce<kHalves>(distances, [](uint32_t a, uint32_t b) { return min(a, b); });
    const uint32_t bits = bracket.from_below ? limit + distance / 2 : limit - distance / 2;
    return __uint_as_float(bits) * factor;
  }

  // Scale (times factor) and zero point of the own row. load(h, half): row h in float32.
  template <typename Load>
  __device__ __forceinline__ RowScale choose_scale(const RowRules& rules, float threshold,
                                                   Load load) {
    RowScale s;
    if (rules.affine) {
      s = spanning_scale(bottom, top, threshold, 3.0f);
      // Smaller ends may not be exact.
      is_fine =
          is_fine && top >= 0x1p-14f && bottom <= -0x1p-14f && s.zero != 0.5f && s.zero != 2.5f;
    } else {
      const float mean_square = __fmul_rn(sum_squares(threshold, load), 1.0f / kHeadDim);
      s = row_scale(round_to_bf16(__fmul_rn(0.9957f, __fsqrt_rn(mean_square))), 1.5f, 3.0f);
    }
    is_fine = is_fine && s.scale >= kSmallest && is_ordinary_scale(s.scale * inverse_factor);
    s.is_ordinary = is_fine;
    return s;
  }

  // Sum of squares of the own row's values up to ±threshold (times factor).
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
          sum = fmaf(y, y, sum);
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

  // The bytes of every half's row, by their levels; s and threshold in the units of the rows.
  // load(h, half): row h in float32. Returns the fitted scale of the own row where `fit` asks for
  // one, else s.scale.
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
                                             const uint32_t (&bottoms)[kHalves], bool has_ends) {
    int high = 0;
    if (has_ends) high = own_reduce<kHalves>(tops, [](int a, int b) { return max(a, b); });
    const uint32_t low =
        own_reduce<kHalves>(bottoms, [](uint32_t a, uint32_t b) { return max(a, b); });
    const uint32_t exponent = max(static_cast<uint32_t>(high), low & 0x7fffffffu) >> 23;
    is_fine = exponent >= 67 && exponent <= 187;
    const uint32_t e = min(max(exponent, 67u), 187u);
    // Of the magnitude that is known; room for another that is larger.
    const uint32_t place = has_ends ? 13 : 9;
    factor = __uint_as_float((254 + place - e) << 23);
    inverse_factor = __uint_as_float((e - place) << 23);
    top = __int_as_float(high) * factor;
    bottom = __uint_as_float(low) * factor;
  }
};

}  // namespace oscar::cuda::encode

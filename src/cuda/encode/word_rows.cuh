// Rows of BF16 in matrix fragments to 2-bit codes, two channels an instruction and none converted.
//
// The bits of BF16, taken as float16, are in the order of the values: what is found by comparing
// (the clip's order statistic, the codes) is found by float16 instructions on the rows as they are.
// What is computed once a row takes the CPU's operations in float32. Bytes are the CPU's.
#pragma once

#include "cuda/encode/fragment_rows.cuh"
#include "cuda/encode/key_search.cuh"
#include "cuda/encode/row_store.cuh"
#include "cuda/encode/word_limits.cuh"

namespace oscar::cuda::encode {

// Words r are in the order that codes are summed in: byte group r % kGroups of a row, at weight
// 4^(r / kGroups). Column tile of word r:
template <int kTiles>
__device__ __forceinline__ constexpr int coded_tile(int r, int side) {
  constexpr int kGroups = kTiles / 4;
  return kTiles == 16 && side == 1 ? r % 2 + r % kGroups / 2 * 8 + r / kGroups * 2 : r;
}

// f() in code of its own, as registers are scarce around it: of kernels for many tokens (two
// halves), whose f holds values alone.
template <typename F>
__device__ __noinline__ auto called(F f) {
  return f();
}
template <int kHalves, typename F>
__device__ __forceinline__ auto apart(F f) {
  if constexpr (kHalves == 2) {
    return called(f);
  } else {
    return f();
  }
}

template <int kTiles, int kHalves>
struct WordRows {
  static constexpr int kHeadDim = 8 * kTiles, kGroups = kTiles / 4;
  static constexpr int kNear = 2;                // of the search
  static constexpr float kLargestSum = 0x1p60f;  // of magnitudes: squares are finite
  using Words = RowWords<kTiles, kHalves>;

  // Of the own row.
  float top = 0, bottom = 0;  // largest and smallest value, where asked for
  bool is_fine = false;       // false: the general encoder must take the row

  // get(r, pair): words r and r + 1 of every half, in the order of codes; again and again, as
  // registers are scarce.

  // The clip's threshold of the own row; has_ends: its largest and smallest value are asked for
  // too.
  template <typename Get>
  __device__ __forceinline__ float clip_threshold(Get get, const RankGuess& guess, bool has_ends,
                                                  bool is_live) {
    KeySearch<kTiles, kHalves, kNear> search;
    get_all(get, search.keys);
    if (has_ends) find_ends(search.keys);
#pragma unroll
    for (auto& row : search.keys) {
#pragma unroll
      for (uint32_t& pair : row) pair &= 0x7fff7fffu;
    }
    const float sum =
        own_total_bf16<kTiles, kHalves>([&](int h, int n) { return search.keys[h][n]; });
    is_fine = sum < kLargestSum;
    if (guess.rank >= kHeadDim) return 0x1p120f;
    const uint32_t first = __float_as_uint(sum * (guess.place / kHeadDim));
    // BF16 has an eighth of the keys of float16.
    const float mantissa = __uint_as_float((first & 0x7fffffu) | 0x3f800000u);
    const KeyBracket bracket =
        search.run(guess.rank, biased_key(first >> 16), 0.125f * guess.key_spacing * mantissa,
                   !is_live || !is_fine);
    return float_from_bf16_bits(search.answer(bracket));
  }

  // Scale and zero point of the own row. load(h, half): row h in float32.
  template <typename Get, typename Load>
  __device__ __forceinline__ RowScale choose_scale(Get get, const RowRules& rules, float threshold,
                                                   Load load) {
    RowScale s;
    if (rules.affine) {
      s = spanning_scale(bottom, top, threshold, 3.0f);
      is_fine = is_fine && top > 0 && bottom < 0 && s.zero != 0.5f && s.zero != 2.5f;
    } else {
      s = row_scale(gaussian_scale(get, threshold, load), 1.5f, 3.0f);
    }
    is_fine = is_fine && is_ordinary_scale(s.scale);
    s.is_ordinary = is_fine;
    return s;
  }

  // The bytes of every half's row.
  template <int kSide, typename Get>
  static __device__ __forceinline__ void choose_bytes(Get get, const RowScale& s, float threshold,
                                                      RowBytes (&rows)[kHalves]) {
    // Lanes of one row find its outer limits together.
    const int lane = threadIdx.x & 31;
    const uint32_t outer = at_least_line(word_limit(s, lane & 2 ? 3 : 1, threshold));
    uint32_t lines[2][kHalves], second[kHalves];
    to_halves<kHalves>(word_limit(s, 2, threshold), second);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        lines[k][h] = __shfl_sync(~0u, outer, (lane & 28) + 2 * k + h);
      }
    }
    uint32_t slopes[2][kHalves];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      second[h] = twice_low(second[h]);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        slopes[k][h] = twice_low(lines[k][h]);
        lines[k][h] = twice_high(lines[k][h]);
      }
    }
    // Products with weights on the diagonal: every lane gets the sum of its own codes, 4^i times
    // those of word i, over 1024: the low byte of a half is the packed byte.
    uint32_t weights[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t weight = 0x3c00u + 0x800u * i;
      weights[i] = lane >> 3 != (lane & 3) ? 0u : lane & 4 ? weight << 16 : weight;
    }
    uint32_t sums[kGroups][2];
#pragma unroll
    for (int group = 0; group < kGroups; group += 2) {
      sums[group][0] = sums[group][1] = sums[group + 1][0] = sums[group + 1][1] = 0x64006400u;
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        uint32_t x[2][kHalves][2];
        get(group + i * kGroups, x[0]);
        get(group + (i + 1) * kGroups, x[1]);
        const auto add = [&](auto match) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            uint32_t a[2][2] = {};
#pragma unroll
            for (int h = 0; h < kHalves; ++h) {
              a[0][h] = match(x[0][h][j], h);
              a[1][h] = match(x[1][h][j], h);
            }
            ptx::mma_f16_f16(sums[group + j], {a[0][0], a[0][1], a[1][0], a[1][1]}, weights[i],
                             weights[i + 1]);
          }
        };
        add([&](uint32_t y, int h) {
          return ptx::fma_saturated_f16x2(y, slopes[0][h], lines[0][h]);
        });
        add([&](uint32_t y, int h) { return ptx::at_least_f16x2(y, second[h]); });
        add([&](uint32_t y, int h) {
          return ptx::fma_saturated_f16x2(y, slopes[1][h], lines[1][h]);
        });
      }
    }
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      // Orders of RowPacker::keys and ::values (row_store.cuh).
      RowBytes bytes{{0, 0, 0, 0}, 0};
      if constexpr (kTiles == 16) {
        const uint32_t a = sums[0][h], b = sums[1][h], c = sums[2][h], d = sums[3][h];
        bytes.words[0] = kSide == 0 ? __byte_perm(a, b, 0x6420) : __byte_perm(a, c, 0x6240);
        bytes.words[1] = kSide == 0 ? __byte_perm(c, d, 0x6420) : __byte_perm(b, d, 0x6240);
      } else {
        const uint32_t a = sums[0][h], b = sums[1][h];
        bytes.words[0] = kSide == 0 ? __byte_perm(a, b, 0x6420) : a & 0x00ff00ffu;
        bytes.words[1] = kSide == 0 ? 0u : b & 0x00ff00ffu;
      }
      rows[h] = bytes;
    }
  }

 private:
  template <typename Get>
  static __device__ __forceinline__ void get_all(Get get, Words& words) {
#pragma unroll
    for (int r = 0; r < kTiles; r += 2) {
      uint32_t pair[kHalves][2];
      get(r, pair);
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        words[h][r] = pair[h][0];
        words[h][r + 1] = pair[h][1];
      }
    }
  }
  __device__ __forceinline__ void find_ends(const Words& words) {
    // As signed integers the largest is the largest value if one is positive; as unsigned ones, the
    // smallest value if one is negative. A row's go in one word, both unsigned.
    uint32_t ends[kHalves];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      uint32_t tops = 0, bottoms = 0;
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        tops = __vimax3_s16x2(tops, words[h][n], words[h][n + 1]);
        bottoms = __vimax3_u16x2(bottoms, words[h][n], words[h][n + 1]);
      }
      tops ^= 0x80008000u;
      ends[h] = __vmaxu2(__byte_perm(tops, bottoms, 0x5410), __byte_perm(tops, bottoms, 0x7632));
    }
    const uint32_t own =
        own_reduce<kHalves>(ends, [](uint32_t a, uint32_t b) { return __vmaxu2(a, b); });
    top = __uint_as_float(own << 16 ^ 0x80000000u);
    bottom = __uint_as_float(own & 0xffff0000u);
  }

  // The scale of the own row, clipped at ±threshold, that suits a Gaussian.
  template <typename Get, typename Load>
  __device__ __forceinline__ float gaussian_scale(Get get, float threshold, Load load) const {
    constexpr float kStep = 0.9957f;
    // The sum of squares by products of the rows with themselves: squares are exact, and each of
    // eight products adds sixteen to a sum with less than 17·2^−23 of it lost, 2^−16.7 in all; the
    // CPU's own sum is within 2^−19 of the exact one. So the scale is within 2^−17 of the CPU's,
    // 128 units of a float at most, and rounds to the same BF16 unless it lies that near a tie.
    const float mean_square = own_squares(get, threshold) * (1.0f / kHeadDim);
    const float scale = kStep * ptx::square_root_approx(mean_square);
    const uint32_t bits = __float_as_uint(scale);
    const bool is_near_tie = (bits & 0xffffu) - 0x7f80u <= 0x100u;
    float rounded = __uint_as_float((bits + 0x8000u) & 0xffff0000u);
    if (__any_sync(~0u, is_near_tie && is_fine)) {
      const float exact = __fmul_rn(
          apart<kHalves>([=] { return ordered_squares(threshold, load); }), 1.0f / kHeadDim);
      rounded = round_to_bf16(__fmul_rn(kStep, __fsqrt_rn(exact)));
    }
    return rounded;
  }

  // Sum of squares of the own row's values up to ±threshold.
  template <typename Get>
  __device__ __forceinline__ float own_squares(Get get, float threshold) const {
    uint32_t limits[kHalves];
    to_halves<kHalves>(__float_as_uint(threshold) >> 16, limits);
#pragma unroll
    for (uint32_t& limit : limits) limit = twice_low(limit);
    // Rows of the tile times its rows g, then times its rows g + 8.
    float c[kHalves][4] = {};
#pragma unroll
    for (int r = 0; r < kTiles; r += 2) {
      uint32_t x[kHalves][2];
      get(r, x);
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
#pragma unroll
        for (uint32_t& pair : x[h]) pair = __vminu2(pair & 0x7fff7fffu, limits[h]);
      }
      const uint4 a = {x[0][0], kHalves == 2 ? x[kHalves - 1][0] : 0u, x[0][1],
                       kHalves == 2 ? x[kHalves - 1][1] : 0u};
#pragma unroll
      for (int h = 0; h < kHalves; ++h) ptx::mma_bf16(c[h], a, x[h][0], x[h][1]);
    }
    // Row g's is column g's.
    const int lane = threadIdx.x & 31, source = (lane & 28) + (lane >> 3);
    float squares[kHalves];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      squares[h] = __shfl_sync(~0u, lane & 4 ? c[h][2 * h + 1] : c[h][2 * h], source);
    }
    return own_of<kHalves>(squares);
  }

  // The same in the CPU's order.
  template <typename Load>
  static __device__ __forceinline__ float ordered_squares(float threshold, Load load) {
    float limits[kHalves], own = 0;
    to_halves<kHalves>(threshold, limits);
#pragma unroll 1
    for (int h = 0; h < kHalves; ++h) {
      RowFragment<kTiles> half;
      load(h, half);
      const float limit = h ? limits[kHalves - 1] : limits[0];
      float sums[2] = {0, 0};
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float y = fminf(fabsf(half[n][e]), limit);
          sums[e] = __fadd_rn(sums[e], __fmul_rn(y, y));
        }
      }
      const float sum = fragment_sum(sums);
      if (kHalves == 1 || (threadIdx.x & 1) == h) own = sum;
    }
    return own;
  }
};

}  // namespace oscar::cuda::encode

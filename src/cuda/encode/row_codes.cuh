// Rows in matrix fragments to codes: the CPU encoder's arithmetic (quantizer.cuh), arranged so that
// ordinary rows need neither divisions nor clips.
//
// - Rounded operations are monotone, so clipping a value clips its code: the bounds' codes replace
//   the clip of every value.
// - A stored scale has eight significant bits, and the number of levels at most four: y·(1/s) and
//   one remainder step give the correctly rounded quotient, as a tie or a closer call would need
//   more bits than y has.
// - Powers of two that the CPU takes out of the sums commute with rounding while nothing overflows
//   or underflows; rows whose scale lies outside 2^−30 … 2^20 take the general path.
#pragma once

#include "cuda/encode/quantizer.cuh"
#include "cuda/encode/rank_search.cuh"

namespace oscar::cuda::encode {

template <int kTiles>
using CodeFragment = uint32_t[kTiles][2];

// Sum over a row of two running sums a lane: channels 2t and 2t + 1 modulo 8, in the CPU's order.
__device__ __forceinline__ float fragment_sum(const float (&sums)[2]) {
  float s[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    s[e] = __fadd_rn(sums[e], __shfl_xor_sync(~0u, sums[e], 2));
    s[e] = __fadd_rn(s[e], __shfl_xor_sync(~0u, s[e], 1));
  }
  return __fadd_rn(s[0], s[1]);
}

// y / divisor, correctly rounded, for divisors of at most eight bits; inverse: about 1 / divisor.
__device__ __forceinline__ float quotient(float y, float divisor, float inverse) {
  const float q = __fmul_rn(y, inverse);
  return __fmaf_rn(__fmaf_rn(-q, divisor, y), inverse, q);
}

struct RowScale {
  float scale, zero, inverse;
  int top;           // code of the clip threshold
  bool is_ordinary;  // else the general path must encode the row
};

inline constexpr float kMagic = 12582912.0f;  // adding it rounds half to even
inline constexpr int kMagicBits = 0x4b400000;

// Level of y, its integer in the low bits.
__device__ __forceinline__ float shifted_level(const RowScale& s, float y) {
  return __fadd_rn(__fadd_rn(quotient(y, s.scale, s.inverse), s.zero), kMagic);
}
__device__ __forceinline__ int clamped_code(float shifted, int top) {
  return __viaddmin_s32_relu(__float_as_int(shifted), -kMagicBits, top);
}

// Codes of the clip's bounds; ordinary rows have 0 at the lower one.
__device__ __forceinline__ void set_bounds(RowScale& s, int levels, float threshold) {
  // Without a clip the threshold is beyond what a code can tell.
  const float bound = fminf(threshold, __fmul_rn(s.scale, 1024.0f));
  s.top = clamped_code(shifted_level(s, bound), levels);
  s.is_ordinary = s.is_ordinary && clamped_code(shifted_level(s, -bound), levels) == 0;
}

__device__ __forceinline__ bool is_ordinary_scale(float scale) {
  return scale >= 0x1p-30f && scale <= 0x1p20f;
}

// Of codes 0 to `levels`; what is ordinary is the caller's to say.
__device__ __forceinline__ RowScale row_scale(float scale, float zero, float levels) {
  return {scale, zero, ptx::reciprocal_approx(scale), static_cast<int>(levels), false};
}
// Scale and zero point that span a row from its smallest to its largest value, clipped at
// ±threshold.
__device__ __forceinline__ RowScale spanning_scale(float bottom, float top, float threshold,
                                                   float levels) {
  const float high = fminf(top, threshold), low = fmaxf(bottom, -threshold);
  RowScale s =
      row_scale(round_to_bf16(quotient(__fsub_rn(high, low), levels, 1.0f / levels)), 0.0f, levels);
  s.zero = round_to_bf16(__fsub_rn(0.0f, quotient(low, s.scale, s.inverse)));
  return s;
}

// Scale and zero point of a row before ScaleFit.
template <int kTiles>
__device__ __forceinline__ RowScale choose_scale(const RowFragment<kTiles>& v,
                                                 const RowRules& rules, float threshold) {
  const float levels = rules.levels();
  if (rules.affine) {
    // As signed integers the largest is the largest float if one is positive; as unsigned ones, the
    // smallest float if one is negative.
    int top = 0;
    uint32_t bottom = 0;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      top = __vimax3_s32(top, __float_as_int(v[n][0]), __float_as_int(v[n][1]));
      bottom = __vimax3_u32(bottom, __float_as_uint(v[n][0]), __float_as_uint(v[n][1]));
    }
#pragma unroll
    for (int o = 1; o < 4; o <<= 1) {
      top = max(top, __shfl_xor_sync(~0u, top, o));
      bottom = max(bottom, __shfl_xor_sync(~0u, bottom, o));
    }
    RowScale s = spanning_scale(__uint_as_float(bottom), __int_as_float(top), threshold, levels);
    s.is_ordinary = top > 0 && bottom > 0x80000000u && is_ordinary_scale(s.scale);
    set_bounds(s, (1 << rules.bits) - 1, threshold);
    return s;
  }
  const float step = rules.gaussian_step();
  float sums[2] = {0, 0};
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float x = fminf(fabsf(v[n][e]), threshold);
      sums[e] = __fadd_rn(sums[e], __fmul_rn(x, x));
    }
  }
  const float mean_square = __fmul_rn(fragment_sum(sums), 1.0f / (8 * kTiles));
  RowScale s =
      row_scale(round_to_bf16(__fmul_rn(step, __fsqrt_rn(mean_square))), levels / 2, levels);
  s.is_ordinary = is_ordinary_scale(s.scale);
  set_bounds(s, (1 << rules.bits) - 1, threshold);
  return s;
}

// The codes of an ordinary row; returns its stored scale and zero point (BF16 bits, low and high
// half).
template <int kTiles>
__device__ __forceinline__ uint32_t choose_codes(const RowFragment<kTiles>& v,
                                                 const RowRules& rules, const RowScale& s,
                                                 CodeFragment<kTiles>& codes) {
  float scale = s.scale;
  if (rules.fit == ScaleFit::kPlain) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        codes[n][e] = static_cast<uint32_t>(clamped_code(shifted_level(s, v[n][e]), s.top));
      }
    }
  } else {
    const bool is_unbiased = rules.fit == ScaleFit::kUnbiased;
    const float most = static_cast<float>(s.top);
    float products[2] = {0, 0}, squares[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float y = v[n][e];
        const float rounded = __fsub_rn(shifted_level(s, y), kMagic);
        const float code = fminf(fmaxf(rounded, 0.0f), most);
        codes[n][e] = __float_as_uint(__fadd_rn(code, kMagic)) - kMagicBits;
        const float decoded = __fmul_rn(s.scale, __fsub_rn(code, s.zero));
        const float squared = is_unbiased ? y : decoded;
        products[e] = __fadd_rn(products[e], __fmul_rn(y, decoded));
        squares[e] = __fadd_rn(squares[e], __fmul_rn(squared, squared));
      }
    }
    const float xd = fragment_sum(products), second = fragment_sum(squares);
    scale = fitted_scale(scale, is_unbiased ? __fdiv_rn(second, xd) : __fdiv_rn(xd, second));
  }
  return __float_as_uint(scale) >> 16 | (__float_as_uint(s.zero) & 0xffff0000u);
}

// The general encoder on the warp's rows: every case, eight lanes a row. True when all live rows
// were finite.
template <int kTiles>
__device__ __forceinline__ bool encode_any_rows(const RowFragment<kTiles>& v, const RowRules& rules,
                                                bool is_live, CodeFragment<kTiles>& codes,
                                                uint32_t& scale_zero) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  bool all_finite = true;
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    const int source = 4 * (4 * pass + lane / 8) + lane % 8 / 2;
    RowQuantizer<kTiles, true> quantizer{rules, {}};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float even = __shfl_sync(~0u, v[n][0], source);
      const float odd = __shfl_sync(~0u, v[n][1], source);
      quantizer.y[n] = lane & 1 ? odd : even;
    }
    const bool is_finite = quantizer.make_finite();
    const bool is_source_live = __shfl_sync(~0u, is_live, source);
    all_finite = all_finite && (is_finite || !is_source_live);
    std::uint8_t row_codes[kTiles];
    const uint32_t stored = quantizer.quantize_group(0, quantizer.clip_threshold(), row_codes);
    const bool is_mine = g / 4 == pass;
    const int owner = 8 * (g % 4);
    const uint32_t mine = __shfl_sync(~0u, stored, owner);
    if (is_mine) scale_zero = mine;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const uint32_t code = __shfl_sync(~0u, uint32_t{row_codes[n]}, owner + 2 * t + e);
        if (is_mine) codes[n][e] = code;
      }
    }
  }
  return __all_sync(~0u, all_finite);
}

// Codes of the warp's eight rows, and their stored scales and zero points. False when a live row
// was not finite (and is zeros). All lanes take part.
template <int kTiles>
__device__ __forceinline__ bool encode_rows(const RowFragment<kTiles>& v, const RowRules& rules,
                                            const RankGuess& guess, bool is_live,
                                            CodeFragment<kTiles>& codes, uint32_t& scale_zero) {
  float threshold = 0x1p120f;
  bool is_fine;
  float sum;
  {
    RankSearch<kTiles> search;
    search.load(v);
    is_fine = search.is_finite();
    sum = search.sum;
    if (guess.rank < 8 * kTiles) {
      search.run(guess, is_live);
      is_fine = search.resolve(v, guess.rank, is_live, threshold) && is_fine;
    }
  }
  const RowScale s = choose_scale<kTiles>(v, rules, threshold);
  // Levels must stay below 2^22, where rounding by addition ends.
  is_fine = is_fine && s.is_ordinary && sum * s.inverse < 0x1p21f;
  if (!__all_sync(~0u, is_fine || !is_live)) {
    return encode_any_rows<kTiles>(v, rules, is_live, codes, scale_zero);
  }
  scale_zero = choose_codes<kTiles>(v, rules, s, codes);
  return true;
}

}  // namespace oscar::cuda::encode

// One rotated row to codes by eight lanes: the CPU's encoder (kernels/encode.h), operation for
// operation. Lane l holds channels 8i + l, so that its running sums are the CPU's eight lanes, and
// the butterfly 4, 2, 1 adds them in the CPU's order.
//
// Every product and sum is rounded on its own (__fmul_rn, __fadd_rn are never contracted).
#pragma once

#include "cuda/device_layout.h"
#include "format/quant_spec.h"

namespace oscar::cuda {

inline constexpr int kRowLanes = 8;

// Values that two lanes of a row agree on after a butterfly.
template <typename T, typename Op>
__device__ __forceinline__ T row_reduce(T value, Op op) {
#pragma unroll
  for (int o = 4; o > 0; o >>= 1) value = op(value, __shfl_xor_sync(~0u, value, o));
  return value;
}
__device__ __forceinline__ float row_sum(float value) {
  return row_reduce(value, [](float a, float b) { return __fadd_rn(a, b); });
}

__device__ __forceinline__ float round_to_bf16(float value) {
  const uint32_t bits = __float_as_uint(value);
  return __uint_as_float((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}

struct PowerOfTwo {
  float value, inverse;
};
__device__ __forceinline__ PowerOfTwo power_of_two_of(uint32_t magnitude) {
  const uint32_t exponent = magnitude >> 23;
  const uint32_t e = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
  return {__uint_as_float(e << 23), __uint_as_float((254 - e) << 23)};
}

// How a row is quantized; the same for all rows of a side and head.
struct RowRules {
  int bits, head_dim, group_size;
  bool affine;
  ScaleFit fit;
  float clip_ratio;
  bool trellis = false;  // 2 bits, not affine

  __device__ __forceinline__ float levels() const {
    return static_cast<float>((1 << (trellis ? 3 : bits)) - 1);
  }
  // Uniform step that is optimal for a unit Gaussian.
  __device__ __forceinline__ float gaussian_step() const {
    return trellis ? 0.5f : bits == 2 ? 0.9957f : bits == 3 ? 0.5860f : 0.3352f;
  }
};

// What ScaleFit makes of a scale.
__device__ __forceinline__ float fitted_scale(float scale, float factor) {
  constexpr float kLargest = 0x1p120f;
  if (!(factor > 0 && __float_as_uint(factor) < 0x7f800000u)) return scale;
  const float fitted = __fmul_rn(scale, factor);
  return round_to_bf16(fitted < kLargest ? fitted : kLargest);
}

struct GroupScale {
  float scale, zero;
};

// kPerLane: channels a lane at most; lanes hold head_dim / 8 of them, the rest is ignored. kWhole:
// head_dim is 8·kPerLane and one group.
template <int kPerLane, bool kWhole>
struct RowQuantizer {
  const RowRules& rules;
  float y[kPerLane];

  __device__ __forceinline__ bool has(int i) const {
    return kWhole || i < rules.head_dim / kRowLanes;
  }
  static __device__ __forceinline__ bool within(int i, int first, int end) {
    return kWhole || (i >= first && i < end);
  }
  static __device__ __forceinline__ uint32_t magnitude(float x) {
    return __float_as_uint(x) & 0x7fffffffu;
  }

  __device__ __forceinline__ uint32_t largest_magnitude(int first, int end) const {
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (within(i, first, end)) largest = max(largest, magnitude(y[i]));
    }
    return row_reduce(largest, [](uint32_t a, uint32_t b) { return max(a, b); });
  }

  // Magnitudes are finite here, so that they compare as floats.
  __device__ __forceinline__ int count_at_most(uint32_t threshold) const {
    const float limit = __uint_as_float(threshold);
    int count = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) count += has(i) && fabsf(y[i]) <= limit;
    return row_reduce(count, [](int a, int b) { return a + b; });
  }

  // Bits of the rank-th smallest magnitude, rank below head_dim. A search over the bits that stops
  // when a threshold separates exactly rank values: the largest of them is the answer. Steps
  // interpolate the counts, every third one halves. All lanes of the warp take part until every
  // row is done.
  __device__ __forceinline__ uint32_t order_statistic(int rank, uint32_t largest) const {
    // Counts: at most `high` ≥ rank, at most `low` < rank; −1 is below every magnitude.
    int low = -1, high = static_cast<int>(largest);
    int count_low = 0, count_high = rules.head_dim;
    // Quantiles of interest mostly lie within a factor of two of the largest.
    int middle = high > (1 << 23) ? high - (1 << 23) : high / 2;
    bool is_done = high - low <= 1;
    for (int step = 1; !__all_sync(~0u, is_done); ++step) {
      const int count = count_at_most(static_cast<uint32_t>(middle));
      if (is_done) continue;
      if (count >= rank) {
        high = middle;
        count_high = count;
      } else {
        low = middle;
        count_low = count;
      }
      is_done = count == rank || high - low <= 1;
      const float part =
          static_cast<float>(rank - count_low) / static_cast<float>(max(1, count_high - count_low));
      const int span = high - low;
      const int ahead =
          step % 3 == 0 ? span / 2 : static_cast<int>(part * static_cast<float>(span));
      middle = low + max(1, min(ahead, span - 1));
    }
    uint32_t answer = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (has(i) && magnitude(y[i]) <= static_cast<uint32_t>(high)) {
        answer = max(answer, magnitude(y[i]));
      }
    }
    return row_reduce(answer, [](uint32_t a, uint32_t b) { return max(a, b); });
  }

  // False when the row holds NaN or Inf; it is then a row of zeros.
  __device__ __forceinline__ bool make_finite() {
    const bool is_finite = largest_magnitude(0, rules.head_dim / kRowLanes) < 0x7f800000u;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) y[i] = is_finite ? y[i] : 0.0f;
    return is_finite;
  }

  __device__ __forceinline__ float clip_threshold() const {
    constexpr float kLargest = 0x1p120f;
    const int rank =
        static_cast<int>(ceilf(__fmul_rn(rules.clip_ratio, static_cast<float>(rules.head_dim))));
    const uint32_t largest = largest_magnitude(0, rules.head_dim / kRowLanes);
    if (rank >= rules.head_dim) return kLargest;
    const float quantile = __uint_as_float(order_statistic(rank < 1 ? 1 : rank, largest));
    return quantile < kLargest ? quantile : kLargest;
  }

  // Scale and zero point of channels [first, end) before ScaleFit. largest: of them.
  __device__ __forceinline__ GroupScale choose_scale(int first, int end, float threshold,
                                                     uint32_t largest) const {
    const float levels = rules.levels();
    const auto clipped = [&](float v) { return fminf(fmaxf(v, -threshold), threshold); };
    float scale, zero;
    if (rules.affine) {
      float low = INFINITY, high = -INFINITY;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if (!within(i, first, end)) continue;
        low = fminf(low, clipped(y[i]));
        high = fmaxf(high, clipped(y[i]));
      }
      low = row_reduce(low, [](float a, float b) { return fminf(a, b); });
      high = row_reduce(high, [](float a, float b) { return fmaxf(a, b); });
      if (low == high) {
        scale = round_to_bf16(fabsf(high));
        zero = scale == 0 ? 0.0f : high > 0 ? -1.0f : 1.0f;
      } else {
        scale = round_to_bf16(__fdiv_rn(__fsub_rn(high, low), levels));
        zero = scale == 0 ? 0.0f : round_to_bf16(__fsub_rn(0.0f, __fdiv_rn(low, scale)));
      }
    } else {
      const float step = rules.gaussian_step();
      const uint32_t limit = __float_as_uint(threshold);
      const PowerOfTwo power = power_of_two_of(largest < limit ? largest : limit);
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if (!within(i, first, end)) continue;
        const float v = __fmul_rn(clipped(y[i]), power.inverse);
        sum = __fadd_rn(sum, __fmul_rn(v, v));
      }
      const float rms = __fsqrt_rn(__fdiv_rn(row_sum(sum), static_cast<float>(rules.group_size)));
      scale = round_to_bf16(__fmul_rn(__fmul_rn(step, rms), power.value));
      zero = levels / 2;
    }
    return {scale, zero};
  }

  // The scale after ScaleFit, which is not kPlain. level(i): less its zero point, of channel i.
  template <typename Level>
  __device__ __forceinline__ float fitted(int first, int end, float scale, Level level) const {
    const float shrink = power_of_two_of(largest_magnitude(first, end)).inverse;
    const bool is_unbiased = rules.fit == ScaleFit::kUnbiased;
    float products = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (!has(i) || !within(i, first, end)) continue;
      const float exact = __fmul_rn(y[i], shrink);
      const float decoded = __fmul_rn(__fmul_rn(scale, level(i)), shrink);
      const float squared = is_unbiased ? exact : decoded;
      products = __fadd_rn(products, __fmul_rn(exact, decoded));
      squares = __fadd_rn(squares, __fmul_rn(squared, squared));
    }
    const float xd = row_sum(products), second = row_sum(squares);
    return fitted_scale(scale, is_unbiased ? __fdiv_rn(second, xd) : __fdiv_rn(xd, second));
  }

  // Quantizes one group: codes[i] for its channels, and its stored scale and zero point as BF16
  // bits in the low and high half. Not of trellis codes.
  __device__ __forceinline__ uint32_t quantize_group(int group, float threshold,
                                                     uint8_t (&codes)[kPerLane]) const {
    constexpr float kMagic = 12582912.0f;
    const int per_lane = rules.group_size / kRowLanes;
    const int first = group * per_lane, end = first + per_lane;
    const float levels = rules.levels();
    const uint32_t largest = largest_magnitude(first, end);
    const auto clipped = [&](float v) { return fminf(fmaxf(v, -threshold), threshold); };
    auto [scale, zero] = choose_scale(first, end, threshold, largest);

    const float divisor = scale == 0 ? 1.0f : scale;
    const float shrink = power_of_two_of(largest).inverse;
    float xx = 0, xd = 0, dd = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (!within(i, first, end)) continue;
      const float level = __fadd_rn(__fdiv_rn(clipped(y[i]), divisor), zero);
      const float shifted = __fadd_rn(fminf(fmaxf(level, 0.0f), levels), kMagic);
      codes[i] = static_cast<uint8_t>(__float_as_uint(shifted));
      if (rules.fit == ScaleFit::kPlain) continue;
      const float decoded =
          __fmul_rn(__fmul_rn(scale, __fsub_rn(__fsub_rn(shifted, kMagic), zero)), shrink);
      const float exact = __fmul_rn(y[i], shrink);
      xd = __fadd_rn(xd, __fmul_rn(exact, decoded));
      if (rules.fit == ScaleFit::kUnbiased) {
        xx = __fadd_rn(xx, __fmul_rn(exact, exact));
      } else {
        dd = __fadd_rn(dd, __fmul_rn(decoded, decoded));
      }
    }
    if (rules.fit != ScaleFit::kPlain) {
      const float over = rules.fit == ScaleFit::kUnbiased ? row_sum(xx) : row_sum(xd);
      const float under = rules.fit == ScaleFit::kUnbiased ? row_sum(xd) : row_sum(dd);
      scale = fitted_scale(scale, __fdiv_rn(over, under));
    }
    return __float_as_uint(scale) >> 16 | (__float_as_uint(zero) & 0xffff0000u);
  }
};

}  // namespace oscar::cuda

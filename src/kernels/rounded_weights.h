// The weights of a page's values in 16 bits. Included after one ISA header of simd/.
#pragma once

#include "kernels/codes.h"
#include "kernels/quantize_queries.h"

namespace oscar::kernels {
namespace {

// The weights of a group: p·scale ≈ step·(256·high + low), offset = Σ of that times the zero point.
template <int num_rows>
struct RoundedWeights {
  alignas(64) std::uint8_t high[num_rows][kPageSize], low[num_rows][kPageSize];
  float step[num_rows], offset[num_rows];

  // All rows go through each part before the next part: a row alone would wait for its reductions.
  void load(const PvIntegerParams& params, int row, int group) {
    const PlaneLayout& layout = params.layout;
    const std::int64_t first = std::int64_t{2} * group * kPageSize;
    const std::uint8_t* scales = params.plane + layout.scales_offset() + first;
    const std::uint8_t* zeros = params.plane + layout.zeros_offset() + first;
    alignas(64) float scaled[num_rows][kPageSize];
    simd::F largest[num_rows];
    for (int r = 0; r < num_rows; ++r) {
      const float* const p = params.p + (row + r) * params.p_stride;
      // Most pages are whole: a loop of constant length.
      largest[r] = params.num_tokens == kPageSize
                       ? scale_row(p, kPageSize, scales, scaled[r])
                       : scale_row(p, params.num_tokens, scales, scaled[r]);
    }
    float inverse[num_rows];
    for (int r = 0; r < num_rows; ++r) {
      const float of_row = simd::reduce_max(largest[r]);
      const bool counts = of_row >= kSmallestScaled;
      step[r] = counts ? of_row / 65535 : 0.0f;
      inverse[r] = counts ? 65535 / of_row : 0.0f;
    }
    const bool is_affine = layout.quant.codebook == Codebook::kAffine;
    for (int r = 0; r < num_rows; ++r) {
      round_row(scaled[r], inverse[r], high[r], low[r]);
      offset[r] = step[r] * (is_affine ? sum_with(scaled[r], zeros)
                                       : centre(code_kind(layout.quant)) * sum(scaled[r]));
    }
  }

 private:
  static constexpr int kVectors = kPageSize / simd::kWidth;

  // scaled[t] = p·scale, 0 past num_tokens; their largest by lanes. Metadata of unwritten tokens
  // may be NaN: selected away, not multiplied by zero.
  [[gnu::always_inline]] static simd::F scale_row(const float* p, int num_tokens,
                                                  const std::uint8_t* scales, float* scaled) {
    simd::F largest{};
    for (int t = 0; t < kPageSize; t += simd::kWidth) {
      const int left = num_tokens - t;
      const simd::F weight = left >= simd::kWidth ? simd::load(p + t)
                             : left <= 0          ? simd::F{}
                                                  : simd::load_partial(p + t, left, 0.0f);
      const simd::F product = weight != 0.0f ? weight * simd::load_bf16(scales + 2 * t) : simd::F{};
      simd::store(scaled + t, product);
      largest = simd::max(largest, product);
    }
    return largest;
  }

  // Leaves the rounded weights, whole numbers below 2¹⁶, in `scaled`.
  static void round_row(float* scaled, float inverse, std::uint8_t* high, std::uint8_t* low) {
    const simd::F magic = simd::broadcast(12582912.0f);  // leaves the integer in the low bits
    simd::U words[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const simd::F shifted = simd::load(scaled + v * simd::kWidth) * inverse + magic;
      words[v] = simd::bits_of(shifted);
      simd::store(scaled + v * simd::kWidth, shifted - magic);
    }
    simd::split_bytes(words, high, low);
  }

  // Whole numbers with a sum below 2²⁴: exact in any order.
  static float sum(const float* rounded) {
    simd::F total{};
    for (int t = 0; t < kPageSize; t += simd::kWidth) total += simd::load(rounded + t);
    return simd::reduce_add(total);
  }

  static float sum_with(const float* rounded, const std::uint8_t* zeros) {
    simd::Lanes total{};
    for (int t = 0; t < kPageSize; t += simd::kWidth) {
      const simd::F weight = simd::load(rounded + t);
      const simd::F zero = simd::load_bf16(zeros + 2 * t);
      simd::add_to_lanes(total, weight != 0.0f ? weight * zero : simd::F{}, t);
    }
    return simd::sum_lanes(total);
  }
};

// sums[r][v] += weights of the four tokens of a quad times vectors of their codes, of both bytes.
// high, low: [num_rows][kPageSize].
template <int num_rows, int num_vectors>
[[gnu::always_inline]] inline void add_weighted_codes(
    const simd::U (&codes)[num_vectors], const std::uint8_t (*high)[kPageSize],
    const std::uint8_t (*low)[kPageSize], int quad,
    simd::ByteSums (&high_sums)[num_rows][num_vectors],
    simd::ByteSums (&low_sums)[num_rows][num_vectors]) {
#pragma GCC unroll 8
  for (int r = 0; r < num_rows; ++r) {
    const simd::U high_bytes =
        simd::broadcast_bits(simd::load_bytes<std::uint32_t>(high[r] + 4 * quad));
    const simd::U low_bytes =
        simd::broadcast_bits(simd::load_bytes<std::uint32_t>(low[r] + 4 * quad));
#pragma GCC unroll 4
    for (int v = 0; v < num_vectors; ++v) {
      simd::add_unsigned_products(high_sums[r][v], codes[v], high_bytes);
      simd::add_unsigned_products(low_sums[r][v], codes[v], low_bytes);
    }
  }
}

}  // namespace
}  // namespace oscar::kernels

// Rotated rows to codes, a codec operation: the contract is EncodeParams in kernels.h. Included
// after one ISA header of simd/.
#pragma once

#include "kernels/codes.h"
#include "kernels/order_statistic.h"
#include "kernels/trellis_search.h"

namespace oscar::kernels {
namespace {

constexpr std::uint32_t kInfinityBits = 0x7f800000u;
constexpr float kLargestMagnitude = 0x1p120f;
// Uniform steps that are optimal for a unit Gaussian, for 2, 3 and 4 bits (Max 1960, table II).
constexpr float kGaussianStep[] = {0.9957f, 0.5860f, 0.3352f};
// Of trellis codes: searched for, at 16 channels a word (docs/adr/0016-trellis-codes.md).
constexpr float kTrellisStep = 0.5f;
constexpr float step_of(int kind) {
  return kind == kTrellisCodes ? kTrellisStep : kGaussianStep[kind - 2];
}

inline float float_from_bits(std::uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

inline std::uint32_t bits_from_float(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Round to nearest even, in place as a float; finite values below the largest BF16 only.
inline float round_to_bf16(float value) {
  const std::uint32_t bits = bits_from_float(value);
  return float_from_bits((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}

inline void store_metadata(std::uint8_t* metadata, int group, int token, float bf16_value) {
  const auto half = static_cast<std::uint16_t>(bits_from_float(bf16_value) >> 16);
  __builtin_memcpy(metadata + 2 * (group * kPageSize + token), &half, sizeof half);
}

struct GroupScale {
  float scale, zero;
};

// 2^e and 2^−e for the exponent e of a magnitude, clamped so that both are normal numbers.
struct PowerOfTwo {
  float value, inverse;
};
inline PowerOfTwo power_of_two_of(std::uint32_t magnitude) {
  const std::uint32_t exponent = magnitude >> 23;
  const std::uint32_t e = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
  return {float_from_bits(e << 23), float_from_bits((254 - e) << 23)};
}

// x: the clipped group; largest: bits of its largest magnitude.
template <int bits>
inline GroupScale choose_scale(const float* x, int size, Codebook codebook, std::uint32_t largest) {
  if (codebook == Codebook::kAffine) {
    simd::F low = simd::load(x), high = low;
    for (int c = simd::kWidth; c < size; c += simd::kWidth) {
      const simd::F v = simd::load(x + c);
      low = simd::min(low, v);
      high = simd::max(high, v);
    }
    const float min = simd::reduce_min(low), max = simd::reduce_max(high);
    if (min == max) {
      const float scale = round_to_bf16(__builtin_fabsf(max));
      return {scale, scale == 0 ? 0.0f : max > 0 ? -1.0f : 1.0f};
    }
    const float scale = round_to_bf16((max - min) / static_cast<float>((1 << bits) - 1));
    // 0 − …, so that a zero minimum of either sign gives +0.
    return {scale, scale == 0 ? 0.0f : round_to_bf16(0.0f - min / scale)};
  }
  const PowerOfTwo power = power_of_two_of(largest);
  const simd::F shrink = simd::broadcast(power.inverse);
  simd::Lanes lanes{};
  for (int c = 0; c < size; c += simd::kWidth) {
    const simd::F v = simd::load(x + c) * shrink;
    simd::add_to_lanes(lanes, v * v, c);
  }
  const float rms = __builtin_sqrtf(simd::sum_lanes(lanes) / static_cast<float>(size));
  return {round_to_bf16(step_of(bits) * rms * power.value), centre(bits)};
}

// ⟨x, x⟩, ⟨x, x̂⟩, ⟨x̂, x̂⟩ of a group, as ScaleFit needs them.
struct FitSums {
  simd::Lanes xx{}, xd{}, dd{};

  void add(simd::F exact, simd::F decoded, ScaleFit fit, int channel) {
    simd::add_to_lanes(xd, exact * decoded, channel);
    if (fit == ScaleFit::kUnbiased) {
      simd::add_to_lanes(xx, exact * exact, channel);
    } else {
      simd::add_to_lanes(dd, decoded * decoded, channel);
    }
  }
  float fitted(float scale, ScaleFit fit) const {
    const float factor = fit == ScaleFit::kUnbiased ? simd::sum_lanes(xx) / simd::sum_lanes(xd)
                                                    : simd::sum_lanes(xd) / simd::sum_lanes(dd);
    const bool is_usable = factor > 0 && bits_from_float(factor) < kInfinityBits;
    if (!is_usable) return scale;
    const float product = scale * factor;
    return round_to_bf16(product < kLargestMagnitude ? product : kLargestMagnitude);
  }
};

// Writes one byte a code, and returns the scale after ScaleFit. x: clipped, y: unclipped; largest:
// bits of y's largest magnitude.
template <int bits>
inline float choose_codes(const float* x, const float* y, int size, GroupScale group, ScaleFit fit,
                          std::uint32_t largest, std::uint8_t* codes) {
  const simd::F divisor = simd::broadcast(group.scale == 0 ? 1.0f : group.scale);
  const simd::F scale = simd::broadcast(group.scale), zero = simd::broadcast(group.zero);
  const simd::F top = simd::broadcast(static_cast<float>((1 << bits) - 1));
  const simd::F shrink = simd::broadcast(power_of_two_of(largest).inverse);
  FitSums sums;
  for (int c = 0; c < size; c += simd::kWidth) {
    const simd::F level = simd::load(x + c) / divisor + zero;
    // Adding 1.5·2²³ rounds half to even and leaves the integer in the low bits.
    const simd::F magic = simd::broadcast(12582912.0f);
    const simd::F shifted = simd::min(simd::max(level, simd::F{}), top) + magic;
    simd::store_bytes(codes + c, simd::bits_of(shifted));
    if (fit == ScaleFit::kPlain) continue;
    const simd::F decoded = scale * ((shifted - magic) - zero) * shrink;
    sums.add(simd::load(y + c) * shrink, decoded, fit, c);
  }
  return fit == ScaleFit::kPlain ? group.scale : sums.fitted(group.scale, fit);
}

// Eight one-byte codes to 8·bits bits, in the order of the plane.
template <int bits>
inline void pack_eight(const std::uint8_t* codes, std::uint8_t* row, int head_dim, int channel) {
  std::uint64_t eight;
  __builtin_memcpy(&eight, codes, sizeof eight);
  if constexpr (bits == 4) {
    eight = (eight | eight >> 4) & 0x00ff00ff00ff00ffull;
    eight = (eight | eight >> 8) & 0x0000ffff0000ffffull;
    const auto word = static_cast<std::uint32_t>(eight | eight >> 16);
    __builtin_memcpy(row + channel / 2, &word, sizeof word);
    return;
  }
  if constexpr (bits == 3) {
    const std::uint64_t third = (eight >> 2) & 0x0101010101010101ull;
    // The product gathers bit 8i of the factor into bit 56 + i.
    row[head_dim / 4 + channel / 8] =
        static_cast<std::uint8_t>((third * 0x0102040810204080ull) >> 56);
    eight &= 0x0303030303030303ull;
  }
  eight = (eight | eight >> 6) & 0x000f000f000f000full;
  eight = (eight | eight >> 12) & 0x000000ff000000ffull;
  const auto half = static_cast<std::uint16_t>(eight | eight >> 24);
  __builtin_memcpy(row + channel / 4, &half, sizeof half);
}

// Clips a row, and returns the largest magnitude that is left to it.
inline float clip_row(const float* y, int head_dim, float clip_ratio, float* clipped) {
  float threshold = kLargestMagnitude;
  const auto rank = static_cast<int>(__builtin_ceilf(clip_ratio * static_cast<float>(head_dim)));
  if (rank < head_dim) {
    const float quantile = float_from_bits(order_statistic(y, head_dim, rank < 1 ? 1 : rank));
    threshold = quantile < threshold ? quantile : threshold;
  }
  const simd::F high = simd::broadcast(threshold), low = simd::broadcast(-threshold);
  for (int c = 0; c < head_dim; c += simd::kWidth) {
    simd::store(clipped + c, simd::min(simd::max(simd::load(y + c), low), high));
  }
  return threshold;
}

template <int bits>
inline void encode_row(const EncodeParams& params, const float* y, std::uint8_t* plane, int token) {
  const PlaneLayout& layout = params.layout;
  const int head_dim = layout.head_dim, group_size = layout.quant.group_size;
  alignas(64) float clipped[kMaxHeadDim];
  alignas(64) std::uint8_t codes[kMaxHeadDim];
  const float threshold = clip_row(y, head_dim, params.clip_ratio, clipped);
  std::uint8_t* scales = plane + layout.scales_offset();
  std::uint8_t* zeros = plane + layout.zeros_offset();
  for (int group = 0; group < layout.num_groups(); ++group) {
    const int first = group * group_size;
    const std::uint32_t largest = largest_magnitude(y + first, group_size);
    const std::uint32_t limit = bits_from_float(threshold);
    const GroupScale chosen = choose_scale<bits>(clipped + first, group_size, layout.quant.codebook,
                                                 largest < limit ? largest : limit);
    const float scale = choose_codes<bits>(clipped + first, y + first, group_size, chosen,
                                           layout.quant.scale_fit, largest, codes + first);
    store_metadata(scales, group, token, scale);
    if (layout.quant.codebook == Codebook::kAffine) {
      store_metadata(zeros, group, token, chosen.zero);
    }
  }
  std::uint8_t* row = plane + token * layout.code_row_bytes();
  for (int c = 0; c < head_dim; c += 8) pack_eight<bits>(codes + c, row, head_dim, c);
}

// Rows of trellis codes: their words fill the lanes of one search together.
struct TrellisRow {
  const float* y;
  std::uint8_t* plane;
  int token;
};
constexpr int kTrellisRows = 4;

inline void encode_trellis_rows(const EncodeParams& params, const TrellisRow* rows, int num_rows) {
  constexpr int kind = kTrellisCodes;
  const PlaneLayout& layout = params.layout;
  const int head_dim = layout.head_dim, group_size = layout.quant.group_size;
  const int num_words = head_dim / kTrellisChannels;
  alignas(64) float positions[kTrellisRows * kMaxHeadDim];  // of the levels' scale
  alignas(64) std::uint32_t words[kTrellisRows * kMaxHeadDim / kTrellisChannels + simd::kWidth];
  float scales[kTrellisRows][kMaxHeadDim / kGroupMultiple];
  std::uint32_t largest[kTrellisRows][kMaxHeadDim / kGroupMultiple];
  for (int r = 0; r < num_rows; ++r) {
    float* const x = positions + r * head_dim;
    const std::uint32_t limit =
        bits_from_float(clip_row(rows[r].y, head_dim, params.clip_ratio, x));
    for (int group = 0; group < layout.num_groups(); ++group) {
      const int first = group * group_size;
      largest[r][group] = largest_magnitude(rows[r].y + first, group_size);
      const float scale = choose_scale<kind>(x + first, group_size, Codebook::kTrellis,
                                             largest[r][group] < limit ? largest[r][group] : limit)
                              .scale;
      scales[r][group] = scale;
      const simd::F divisor = simd::broadcast(scale == 0 ? 1.0f : scale);
      for (int c = first; c < first + group_size; c += simd::kWidth) {
        simd::store(x + c, simd::load(x + c) / divisor + simd::broadcast(centre(kind)));
      }
    }
  }
  search_trellis(positions, num_rows * num_words, words);
  for (int r = 0; r < num_rows; ++r) {
    std::uint8_t* const codes = rows[r].plane + rows[r].token * layout.code_row_bytes();
    __builtin_memcpy(codes, words + r * num_words, static_cast<std::size_t>(head_dim / 4));
    for (int group = 0; group < layout.num_groups(); ++group) {
      float scale = scales[r][group];
      if (layout.quant.scale_fit != ScaleFit::kPlain) {
        const simd::F shrink = simd::broadcast(power_of_two_of(largest[r][group]).inverse);
        FitSums sums;
        for (int c = group * group_size; c < (group + 1) * group_size; c += kUnit) {
          simd::F levels[kUnitVectors];
          load_codes<kind>(codes, head_dim, c, levels);
          for (int j = 0; j < kUnitVectors; ++j) {
            const int channel = c + j * simd::kWidth;
            const simd::F decoded =
                simd::broadcast(scale) * (levels[j] - simd::broadcast(centre(kind))) * shrink;
            sums.add(simd::load(rows[r].y + channel) * shrink, decoded, layout.quant.scale_fit,
                     channel);
          }
        }
        scale = sums.fitted(scale, layout.quant.scale_fit);
      }
      store_metadata(rows[r].plane + layout.scales_offset(), group, rows[r].token, scale);
    }
  }
}

// BF16 rows, saturated at the largest finite BF16.
inline void encode_exact(const EncodeParams& params, const float* y, std::uint8_t* plane,
                         int token) {
  std::uint8_t* row = plane + token * params.layout.code_row_bytes();
  const simd::F top = simd::broadcast(0x1.fep127f);
  for (int c = 0; c < params.layout.head_dim; c += simd::kWidth) {
    const simd::F v = simd::min(simd::max(simd::load(y + c), -top), top);
    const simd::U bits = simd::bits_of(v);
    simd::store_halves(row + 2 * c, (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
}

inline bool encode_rows_generic(const EncodeParams& params) {
  alignas(64) static const float kZeroRow[kMaxHeadDim] = {};
  bool all_finite = true;
  TrellisRow trellis[kTrellisRows];
  int num_trellis = 0;
  for (std::int64_t r = 0; r < params.num_rows; ++r) {
    std::uint8_t* plane = params.planes[r];
    if (plane == nullptr) continue;
    const float* y = params.y + r * params.y_stride;
    if (largest_magnitude(y, params.layout.head_dim) >= kInfinityBits) {
      all_finite = false;
      y = kZeroRow;
    }
    const int token = params.token_in_page[r];
    switch (code_kind(params.layout.quant)) {
      case kTrellisCodes:
        trellis[num_trellis++] = {y, plane, token};
        if (num_trellis == kTrellisRows) {
          encode_trellis_rows(params, trellis, num_trellis);
          num_trellis = 0;
        }
        break;
      case 2: encode_row<2>(params, y, plane, token); break;
      case 3: encode_row<3>(params, y, plane, token); break;
      case 4: encode_row<4>(params, y, plane, token); break;
      default: encode_exact(params, y, plane, token); break;
    }
  }
  if (num_trellis > 0) encode_trellis_rows(params, trellis, num_trellis);
  return all_finite;
}

}  // namespace
}  // namespace oscar::kernels

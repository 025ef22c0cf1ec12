// Codes of one row with channels in lanes. Layout: format/plane_layout.h. Included after one ISA
// header of simd/.
#pragma once

#include "kernels/kernels.h"

namespace oscar::kernels {
namespace {

constexpr int kUnit = 16;  // head sizes and groups are multiples of it
constexpr int kUnitVectors = kUnit / simd::kWidth;

// Channels [channel, channel + 16) of a row as floats 0 … 2^bits − 1; channel is a multiple of 16.
template <int bits>
inline void load_codes(const std::uint8_t* row, int head_dim, int channel,
                       simd::F codes[kUnitVectors]) {
  using simd::U;
  const U lane = simd::lane_index();
  for (int j = 0; j < kUnitVectors; ++j) {
    const U lane_in_unit = lane + static_cast<std::uint32_t>(j * simd::kWidth);
    U word;
    if constexpr (bits == 4) {
      const std::uint8_t* p = row + channel / 2;
      word = lane_in_unit < 8u ? simd::broadcast_bits(simd::load_word(p))
                               : simd::broadcast_bits(simd::load_word(p + 4));
      word >>= 4u * (lane_in_unit & 7u);
    } else {
      word = simd::broadcast_bits(simd::load_word(row + channel / 4)) >> (2u * lane_in_unit);
    }
    if constexpr (bits == 3) {
      const std::uint32_t third_bits = simd::load_half(row + head_dim / 4 + channel / 8);
      word = (word & 3u) | ((simd::broadcast_bits(third_bits) >> lane_in_unit) << 2);
    }
    codes[j] = simd::low_bits_to_float<bits>(word);
  }
}

// Scale (or zero point) of a group and token; `metadata` is the start of the plane's scales or
// zeros.
inline float load_metadata(const std::uint8_t* metadata, int group, int token) {
  const std::uint32_t bits = simd::load_half(metadata + 2 * (group * kPageSize + token)) << 16;
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

// Half of the code range: the zero point of the symmetric codebook.
constexpr float centre(int bits) { return static_cast<float>((1 << bits) - 1) / 2; }

}  // namespace
}  // namespace oscar::kernels

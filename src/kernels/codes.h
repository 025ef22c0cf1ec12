// Codes of one row with channels in lanes. Layout: format/plane_layout.h. Included after one ISA
// header of simd/.
#pragma once

#include "format/trellis.h"
#include "kernels/kernels.h"

namespace oscar::kernels {
namespace {

constexpr int kUnit = 16;  // head sizes and groups are multiples of it
constexpr int kUnitVectors = kUnit / simd::kWidth;

// What operations on codes are compiled for: 2, 3 or 4 bits of affine and symmetric codes, or
// trellis codes, which lie as 2 bits do and stand for levels of 3.
constexpr int kTrellisCodes = 1;
[[gnu::always_inline]] inline int code_kind(const QuantSpec& quant) {
  return quant.bits == 2 && quant.codebook == Codebook::kTrellis ? kTrellisCodes : quant.bits;
}
constexpr int bits_of_levels(int kind) { return kind == kTrellisCodes ? 3 : kind; }
// Bits of the plane that holds them, or their low bits.
constexpr int bits_of_plane(int kind) { return kind == 4 ? 4 : 2; }

// The levels of a word's sixteen channels as floats.
inline void load_trellis_unit(const std::uint8_t* word_at, simd::F levels[kUnitVectors]) {
  const auto word = simd::load_bytes<std::uint32_t>(word_at);
  const simd::U codes = simd::broadcast_bits(word);
  const simd::U low = simd::broadcast_bits(trellis_low_bits(word));
  for (std::uint32_t j = 0; j < kUnitVectors; ++j) {
    const simd::U shift = 2u * (simd::lane_index() + j * static_cast<std::uint32_t>(simd::kWidth));
    const simd::U third = ((codes >> shift) & 2u) << 1;
    levels[j] = simd::low_bits_to_float<3>(((low >> shift) & 3u) | third);
  }
}

// Channels [channel, channel + 16) of a row as floats 0 … 2^bits − 1; channel is a multiple of 16.
template <int bits>
inline void load_codes(const std::uint8_t* row, [[maybe_unused]] int head_dim, int channel,
                       simd::F codes[kUnitVectors]) {
  if constexpr (bits == kTrellisCodes) {
    load_trellis_unit(row + channel / 4, codes);
  } else {
    const std::uint8_t* low = row + (bits == 4 ? channel / 2 : channel / 4);
    simd::load_unit<bits>(low, row + head_dim / 4 + channel / 8, codes);
  }
}

// Scale (or zero point) of a group and token; `metadata` is the start of the plane's scales or
// zeros.
inline float load_metadata(const std::uint8_t* metadata, int group, int token) {
  return bf16_to_float(simd::load_bytes<bf16_t>(metadata + 2 * (group * kPageSize + token)));
}

// Bytes from one exact row to the next.
template <typename Params>
inline std::int64_t exact_row_stride(const Params& params) {
  return params.row_stride_bytes != 0 ? params.row_stride_bytes : params.layout.code_row_bytes();
}

// Half of the range of codes, or of a trellis code's levels: the zero point where none is stored.
constexpr float centre(int kind) { return static_cast<float>((1 << bits_of_levels(kind)) - 1) / 2; }

}  // namespace
}  // namespace oscar::kernels

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
  const std::uint8_t* low = row + (bits == 4 ? channel / 2 : channel / 4);
  simd::load_unit<bits>(low, row + head_dim / 4 + channel / 8, codes);
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

// Half of the code range: the zero point of the symmetric codebook.
constexpr float centre(int bits) { return static_cast<float>((1 << bits) - 1) / 2; }

}  // namespace
}  // namespace oscar::kernels

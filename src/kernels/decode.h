// x̂ = scale·(code − zero_point), a codec operation: one subtraction, one multiplication. Included
// after one ISA header of simd/.
#pragma once

#include "kernels/codes.h"

namespace oscar::kernels {
namespace {

template <int bits>
inline void decode_codes(const DecodeParams& params) {
  const PlaneLayout& layout = params.layout;
  const std::uint8_t* scales = params.plane + layout.scales_offset();
  const std::uint8_t* zeros = params.plane + layout.zeros_offset();
  const bool is_affine = layout.quant.codebook == Codebook::kAffine;
  for (int i = 0; i < params.num_tokens; ++i) {
    const int token = params.first + i;
    const std::uint8_t* row = params.plane + token * layout.code_row_bytes();
    float* out = params.rows + i * params.row_stride;
    for (int group = 0; group < layout.num_groups(); ++group) {
      const simd::F scale = simd::broadcast(load_metadata(scales, group, token));
      const simd::F zero =
          simd::broadcast(is_affine ? load_metadata(zeros, group, token) : centre(bits));
      const int first_channel = group * layout.quant.group_size;
      for (int c = first_channel; c < first_channel + layout.quant.group_size; c += kUnit) {
        simd::F codes[kUnitVectors];
        load_codes<bits>(row, layout.head_dim, c, codes);
        for (int j = 0; j < kUnitVectors; ++j) {
          simd::store(out + c + j * simd::kWidth, scale * (codes[j] - zero));
        }
      }
    }
  }
}

inline void decode_exact(const DecodeParams& params) {
  for (int i = 0; i < params.num_tokens; ++i) {
    const std::uint8_t* row = params.plane + (params.first + i) * params.layout.code_row_bytes();
    float* out = params.rows + i * params.row_stride;
    for (int c = 0; c < params.layout.head_dim; c += simd::kWidth) {
      simd::store(out + c, simd::load_bf16(row + 2 * c));
    }
  }
}

inline void decode_rows_generic(const DecodeParams& params) {
  switch (code_kind(params.layout.quant)) {
    case kTrellisCodes: return decode_codes<kTrellisCodes>(params);
    case 2: return decode_codes<2>(params);
    case 3: return decode_codes<3>(params);
    case 4: return decode_codes<4>(params);
    default: return decode_exact(params);
  }
}

}  // namespace
}  // namespace oscar::kernels

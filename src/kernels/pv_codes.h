// Weighted sums of a page's values straight on the codes. Included after one ISA header of simd/.
//
// Channels lie in lanes. The scale goes into the weight, w = p·scale, and the zero point comes off
// once per group: Σ w·code − Σ w·zero.
#pragma once

#include "kernels/codes.h"
#include "kernels/prefetch.h"
#include "kernels/tile_panel.h"

namespace oscar::kernels {
namespace {

// out[r][channel …] += Σ_t weights[r][t]·code − offsets[r] for num_units·16 channels.
template <int bits, int num_rows, int num_units>
inline void accumulate_units(const PvCodesParams& params, int row, int channel,
                             const float (*weights)[kPageSize], const float* offsets,
                             Prefetcher& prefetcher) {
  constexpr int kVectors = num_units * kUnitVectors;
  const std::int64_t row_bytes = params.layout.code_row_bytes();
  const int head_dim = params.layout.head_dim;
  simd::F sums[num_rows][kVectors];
  for (int r = 0; r < num_rows; ++r) {
    for (int v = 0; v < kVectors; ++v) sums[r][v] = simd::broadcast(-offsets[r]);
  }
  for (int t = 0; t < params.num_tokens; ++t) {
    prefetcher.step();
    simd::F codes[kVectors];
#pragma GCC unroll 8
    for (int u = 0; u < num_units; ++u) {
      load_codes<bits>(params.plane + t * row_bytes, head_dim, channel + u * kUnit,
                       codes + u * kUnitVectors);
    }
#pragma GCC unroll 16
    for (int r = 0; r < num_rows; ++r) {
      const simd::F weight = simd::load_broadcast(weights[r] + t);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sums[r][v] = simd::fma(weight, codes[v], sums[r][v]);
    }
  }
  for (int r = 0; r < num_rows; ++r) {
    float* out = params.out + (row + r) * params.out_stride + channel;
    for (int v = 0; v < kVectors; ++v) {
      simd::store(out + v * simd::kWidth, simd::load(out + v * simd::kWidth) + sums[r][v]);
    }
  }
}

template <int bits, int num_rows>
inline void pv_rows(const PvCodesParams& params, int row) {
  constexpr int kUnits = simd::code_units(num_rows);
  const PlaneLayout& layout = params.layout;
  const std::uint8_t* scales = params.plane + layout.scales_offset();
  const std::uint8_t* zeros = params.plane + layout.zeros_offset();
  const bool is_affine = layout.quant.codebook == Codebook::kAffine;
  alignas(64) float weights[num_rows][kPageSize];
  Prefetcher prefetcher(row == 0 ? params.next_plane : nullptr, layout.plane_bytes(),
                        params.num_tokens * (layout.head_dim / (kUnits * kUnit)));
  for (int group = 0; group < layout.num_groups(); ++group) {
    float offsets[num_rows];
    for (int r = 0; r < num_rows; ++r) {
      const float* p = params.p + (row + r) * params.p_stride;
      simd::F sum{};
      for (int t = 0; t < params.num_tokens; t += simd::kWidth) {
        const int left = params.num_tokens - t;
        const int count = left < simd::kWidth ? left : simd::kWidth;
        const std::int64_t offset = 2 * (group * kPageSize + t);
        const simd::F weight = simd::load_partial(p + t, count, 0.0f);
        // Metadata of unwritten tokens may be NaN: selected away, not multiplied by zero.
        const simd::I is_used = weight != 0.0f;
        const simd::F scaled = is_used ? weight * simd::load_bf16(scales + offset) : simd::F{};
        const simd::F zero =
            is_affine ? simd::load_bf16(zeros + offset) : simd::broadcast(centre(bits));
        simd::store(weights[r] + t, scaled);
        sum += is_used ? scaled * zero : simd::F{};
      }
      offsets[r] = simd::reduce_add(sum);
    }
    int c = group * layout.quant.group_size;
    const int end = c + layout.quant.group_size;
    for (; c + kUnits * kUnit <= end; c += kUnits * kUnit) {
      accumulate_units<bits, num_rows, kUnits>(params, row, c, weights, offsets, prefetcher);
    }
    for (; c < end; c += kUnit) {
      accumulate_units<bits, num_rows, 1>(params, row, c, weights, offsets, prefetcher);
    }
  }
}

template <int bits>
inline void pv_codes_of(const PvCodesParams& params) {
  for_each_row_block<simd::kCodeRows>(
      params.num_rows, [&]<int num_rows>(int row) { pv_rows<bits, num_rows>(params, row); });
}

// The largest and the smallest magnitude of each token's weights.
struct WeightRange {
  alignas(64) float largest[kPageSize], smallest[kPageSize];
};

// Exact values: out[r][channel …] += Σ p·v. What was never written may be NaN, which times a weight
// of 0 must not be added.
template <int num_rows, int num_vectors>
inline void accumulate_exact(const PvCodesParams& params, int row, int channel,
                             const WeightRange& range) {
  const std::int64_t row_bytes = exact_row_stride(params);
  const float* p = params.p + row * params.p_stride;
  float* out = params.out + row * params.out_stride + channel;
  simd::F sums[num_rows][num_vectors];
  for (int r = 0; r < num_rows; ++r) {
    for (int v = 0; v < num_vectors; ++v) {
      sums[r][v] = simd::load(out + r * params.out_stride + v * simd::kWidth);
    }
  }
  for (int t = 0; t < params.num_tokens; ++t) {
    if (range.largest[t] == 0.0f) continue;
    const bool some_are_zero = range.smallest[t] == 0.0f;
    simd::F values[num_vectors];
#pragma GCC unroll 8
    for (int v = 0; v < num_vectors; ++v) {
      values[v] = simd::load_bf16(params.plane + t * row_bytes + 2 * (channel + v * simd::kWidth));
    }
#pragma GCC unroll 16
    for (int r = 0; r < num_rows; ++r) {
      const float* const p_here = p + r * params.p_stride + t;
      if (some_are_zero && *p_here == 0.0f) continue;
      const simd::F weight = simd::load_broadcast(p_here);
#pragma GCC unroll 8
      for (int v = 0; v < num_vectors; ++v) sums[r][v] = simd::fma(weight, values[v], sums[r][v]);
    }
  }
  for (int r = 0; r < num_rows; ++r) {
    for (int v = 0; v < num_vectors; ++v) {
      simd::store(out + r * params.out_stride + v * simd::kWidth, sums[r][v]);
    }
  }
}

inline void pv_exact(const PvCodesParams& params) {
  WeightRange range;
  for (int t = 0; t < params.num_tokens; t += simd::kWidth) {
    const int left = params.num_tokens - t;
    simd::F largest{}, smallest = simd::broadcast(1.0f);
    for (int r = 0; r < params.num_rows; ++r) {
      const simd::F p = simd::load_partial(params.p + r * params.p_stride + t,
                                           left < simd::kWidth ? left : simd::kWidth, 0.0f);
      const simd::F magnitude = simd::from_bits(simd::magnitude_bits(p));
      largest = simd::max(magnitude, largest);
      smallest = simd::min(magnitude, smallest);
    }
    simd::store(range.largest + t, largest);
    simd::store(range.smallest + t, smallest);
  }
  // Few rows take whole rows of values at a time, which come from memory in one run each.
  constexpr int kFewRows = simd::kTransformFewRows, kManyVectors = simd::kTransformVectors;
  if (kFewRows > 1 && params.num_rows <= 2 * kFewRows &&
      params.layout.head_dim % (kManyVectors * simd::kWidth) == 0) {
    for_each_row_block<kFewRows>(params.num_rows, [&]<int num_rows>(int row) {
      for (int c = 0; c < params.layout.head_dim; c += kManyVectors * simd::kWidth) {
        accumulate_exact<num_rows, kManyVectors>(params, row, c, range);
      }
    });
    return;
  }
  constexpr int kColumns = simd::kTileVectors * simd::kWidth;
  for_each_row_block<simd::kTileRows>(params.num_rows, [&]<int num_rows>(int row) {
    int c = 0;
    for (; c + kColumns <= params.layout.head_dim; c += kColumns) {
      accumulate_exact<num_rows, simd::kTileVectors>(params, row, c, range);
    }
    for (; c < params.layout.head_dim; c += simd::kWidth) {
      accumulate_exact<num_rows, 1>(params, row, c, range);
    }
  });
}

inline void pv_codes_generic(const PvCodesParams& params) {
  switch (code_kind(params.layout.quant)) {
    case kTrellisCodes: return pv_codes_of<kTrellisCodes>(params);
    case 2: return pv_codes_of<2>(params);
    case 3: return pv_codes_of<3>(params);
    case 4: return pv_codes_of<4>(params);
    default: return pv_exact(params);
  }
}

}  // namespace
}  // namespace oscar::kernels

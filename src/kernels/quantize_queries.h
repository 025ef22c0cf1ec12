// Query rows as pairs of bytes for the integer operations. Included after one ISA header of simd/.
//
// A step is four channels whose codes lie in the same bits of the four bytes of a word: channels
// 16w + p + {0, 4, 8, 12} for 2 and 3 bits, 8w + p + {0, 2, 4, 6} for 4 bits. Step by step lie the
// four high and the four low bytes of every row.
#pragma once

#include "kernels/order_statistic.h"

namespace oscar::kernels {
namespace {

// Groups whose largest magnitude is below it count as zero, so that its reciprocal is a normal
// number.
constexpr float kSmallestScaled = 0x1p-100f;
constexpr float kLargestQuery = 127 * 256 + 127;  // both bytes signed

// bytes: of the row's first step in the group, a step being step_bytes after the one before.
template <int codes_a_byte>
inline void quantize_group(const float* q, int size, std::int8_t* bytes, std::int64_t step_bytes,
                           float* scale, float* sum) {
  alignas(64) std::uint8_t high[kMaxHeadDim], low[kMaxHeadDim];
  const std::uint32_t largest_bits = largest_magnitude(q, size);
  float largest;
  __builtin_memcpy(&largest, &largest_bits, sizeof largest);
  *scale = largest / kLargestQuery;
  *sum = 0;
  const bool is_finite = largest_bits < 0x7f800000u;
  if (!is_finite || largest < kSmallestScaled) {
    // NaN and Inf reach the logits, as in floating point.
    *scale = is_finite ? 0.0f : __builtin_nanf("");
    for (int step = 0; step < size / 4; ++step) __builtin_memset(bytes + step * step_bytes, 0, 8);
    return;
  }
  const simd::F inverse = simd::broadcast(kLargestQuery / largest);
  const simd::F magic = simd::broadcast(12582912.0f);  // leaves the integer in the low bits
  simd::F total{};                                     // of whole numbers: exact in any order
  for (int c = 0; c < size; c += simd::kWidth) {
    const simd::F shifted = simd::load(q + c) * inverse + magic;
    // code = 256·high + low with low in [−128, 127].
    simd::store_bytes(low + c, simd::bits_of(shifted));
    simd::store_bytes(high + c, (simd::bits_of(shifted) + 128u) >> 8);
    total += shifted - magic;
  }
  *sum = simd::reduce_add(total);
  for (int word = 0; word < size; word += 4 * codes_a_byte) {
    for (int p = 0; p < codes_a_byte; ++p) {
      for (int byte = 0; byte < 4; ++byte) {
        const int channel = word + byte * codes_a_byte + p;
        bytes[byte] = static_cast<std::int8_t>(high[channel]);
        bytes[4 + byte] = static_cast<std::int8_t>(low[channel]);
      }
      bytes += step_bytes;
    }
  }
}

inline void quantize_queries_generic(const QuantizeQueriesParams& params) {
  const PlaneLayout& layout = params.layout;
  const int num_groups = layout.num_groups(), group_size = layout.quant.group_size;
  const std::int64_t step_bytes = 8 * params.num_rows;
  for (std::int64_t r = 0; r < params.num_rows; ++r) {
    for (int group = 0; group < num_groups; ++group) {
      const int first = group * group_size;
      const auto quantize = layout.quant.bits == 4 ? quantize_group<2> : quantize_group<4>;
      quantize(params.q + r * params.q_stride + first, group_size,
               params.bytes + first / 4 * step_bytes + 8 * r, step_bytes,
               params.scales + r * num_groups + group, params.sums + r * num_groups + group);
    }
  }
}

}  // namespace
}  // namespace oscar::kernels

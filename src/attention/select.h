// Bitwise choice among the 64 values of a row: NaN on the side that is not chosen leaves no trace.
#pragma once

#include <array>
#include <cstdint>

#include "format/quant_spec.h"

namespace oscar::attention {

inline constexpr std::array<std::uint32_t, 32> kLaneBits = [] {
  std::array<std::uint32_t, 32> bits{};
  for (int i = 0; i < 32; ++i) bits[i] = std::uint32_t{1} << i;
  return bits;
}();

// values[t] stays where bit t of `bits` is set and becomes `other` elsewhere. values: [64]
inline void keep_where(std::uint64_t bits, float other, float* values) noexcept {
  if (bits == ~std::uint64_t{0}) return;
  for (int half = 0; half < 2; ++half) {
    const auto lanes = static_cast<std::uint32_t>(bits >> (32 * half));
    float* const v = values + 32 * half;
    for (int t = 0; t < 32; ++t) v[t] = (lanes & kLaneBits[t]) != 0 ? v[t] : other;
  }
}

// values[t] = from[t] where bit t of `bits` is set. Both [64].
inline void select_where(std::uint64_t bits, const float* from, float* values) noexcept {
  if (bits == 0) return;
  for (int half = 0; half < 2; ++half) {
    const auto lanes = static_cast<std::uint32_t>(bits >> (32 * half));
    const float* const f = from + 32 * half;
    float* const v = values + 32 * half;
    for (int t = 0; t < 32; ++t) v[t] = (lanes & kLaneBits[t]) != 0 ? f[t] : v[t];
  }
}

}  // namespace oscar::attention

// bfloat16 as its bits. Conversion rounds to nearest even and keeps NaN a NaN.
#pragma once

#include <cstdint>
#include <cstring>

namespace oscar {

using bf16_t = std::uint16_t;

inline float bf16_to_float(bf16_t bits) noexcept {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

inline bf16_t bf16_from_float(float value) noexcept {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<bf16_t>((bits >> 16) | 0x40u);
  const std::uint32_t rounding = 0x7fffu + ((bits >> 16) & 1u);
  return static_cast<bf16_t>((bits + rounding) >> 16);
}

}  // namespace oscar

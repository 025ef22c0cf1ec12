// IEEE half precision as its bits. Conversion rounds to nearest even, saturates at 65504 and keeps
// NaN a NaN.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace oscar {

using f16_t = std::uint16_t;
inline constexpr float kLargestF16 = 65504.0f;

inline float f16_to_float(f16_t bits) noexcept {
  constexpr std::uint32_t kExponent = 0x7c00, kFloatExponent = 0x7f800000;
  const std::uint32_t sign = std::uint32_t{bits} >> 15 << 31,
                      magnitude = std::uint32_t{bits} & 0x7fff;
  // The exponent's bias differs by 112; the product is exact, subnormals included.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t finite = std::bit_cast<std::uint32_t>(scaled);
  const std::uint32_t special = magnitude << 13 | kFloatExponent;
  return std::bit_cast<float>(sign | (magnitude >= kExponent ? special : finite));
}

inline f16_t f16_from_float(float value) noexcept {
  constexpr std::uint32_t kInfinity = 0x7f800000, kTooLarge = 0x477ff000, kLeastNormal = 0x38800000;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > kInfinity) return static_cast<f16_t>(sign | 0x7e00);
  if (magnitude >= kTooLarge) return static_cast<f16_t>(sign | 0x7bff);
  if (magnitude < kLeastNormal) {
    const float steps = std::bit_cast<float>(magnitude) * 0x1p24f;  // of 2^-24, below 1024
    return static_cast<f16_t>(sign | static_cast<std::uint32_t>(std::nearbyint(steps)));
  }
  const std::uint32_t rounding = 0xfffu + (magnitude >> 13 & 1);
  return static_cast<f16_t>(sign | (magnitude + rounding - 0x38000000) >> 13);
}

}  // namespace oscar

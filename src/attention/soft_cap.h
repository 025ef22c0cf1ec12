// cap·tanh(x/cap) over a row of logits, without calls into the maths library.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace oscar::attention {

// 2^y for |y| ≤ 126: the nearest integer goes into the exponent, the rest, |r| ≤ 1/2, through the
// Taylor series of e^(r·ln 2); its next term is below 2^-28.
inline float exp2_taylor(float y) noexcept {
  constexpr float kRound = 12582912.0f;  // 1.5·2^23: adding it leaves no bits behind the point
  constexpr float kLn2 = 0.693147181f;
  const float shifted = y + kRound;
  const float x = (y - (shifted - kRound)) * kLn2;
  float sum = 1.0f / 5040;
  for (const float coefficient :
       {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2, 1.0f, 1.0f})
    sum = sum * x + coefficient;
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) << 23;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(sum) + exponent);
}

// values[t] = cap·tanh(values[t]/cap), off by less than cap·2⁻²¹; NaN becomes ±cap. cap > 0.
inline void soft_cap(float cap, int count, float* values) noexcept {
  constexpr float kTwoLog2E = 2.88539008f;
  constexpr float kSaturated = 60.0f;  // 2⁶⁰ + 1 = 2⁶⁰ in float
  const float factor = kTwoLog2E / cap;
  for (int t = 0; t < count; ++t) {
    const float y = std::min(std::max(values[t] * factor, -kSaturated), kSaturated);
    values[t] = cap - 2.0f * cap / (exp2_taylor(y) + 1.0f);
  }
}

}  // namespace oscar::attention

// Uniform codes of a run of values that share a scale: x̂ = scale·code + offset, both stored as
// halves. The two published ways to choose them; every step is one IEEE operation, so that bytes
// are the same everywhere.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/f16.h"

namespace oscar::methods {

enum class ZeroPoint {
  kMinimum,  // offset = the smallest value; KIVI, Kitty, OTT
  kInteger,  // offset = −z·scale with z a whole number, not clamped; QuaRot, SpinQuant, OScaR
};

inline constexpr std::int64_t kAffineBytes = 2 * sizeof(f16_t);

// kMinimum: both numbers are rounded to halves first; code = clamp((x − offset)/scale, 0, levels)
// rounded half to even, 0 where the scale is 0.
// kInteger: scale = (max − min)/levels in single precision; z = round(−min/scale); code =
// clamp(round(x/scale + z), 0, levels); halves of scale and −z·scale are stored. A run of zeros
// counts as [−1, 1]; any other run of one value stores scale 0 and the value.
class Affine {
 public:
  Affine(ZeroPoint zero_point, int bits, float min, float max)
      : zero_point_(zero_point), levels_(static_cast<float>((1 << bits) - 1)) {
    if (zero_point == ZeroPoint::kMinimum) {
      scale_bits_ = f16_from_float((max - min) / levels_);
      offset_bits_ = f16_from_float(min);
      scale_ = f16_to_float(scale_bits_);
      shift_ = f16_to_float(offset_bits_);
      return;
    }
    if (min == max && max != 0.0f) {
      offset_bits_ = f16_from_float(max);
      return;
    }
    if (min == max) {
      min = -1.0f;
      max = 1.0f;
    }
    scale_ = (max - min) / levels_;
    shift_ = std::nearbyint(-min / scale_);
    scale_bits_ = f16_from_float(scale_);
    offset_bits_ = f16_from_float(-shift_ * scale_);
  }

  std::uint8_t code(float x) const {
    if (scale_ == 0.0f) return 0;
    const float level =
        zero_point_ == ZeroPoint::kMinimum ? (x - shift_) / scale_ : x / scale_ + shift_;
    return static_cast<std::uint8_t>(std::clamp(std::nearbyint(level), 0.0f, levels_));
  }

  void store(std::uint8_t* dst) const {
    std::memcpy(dst, &scale_bits_, sizeof scale_bits_);
    std::memcpy(dst + sizeof scale_bits_, &offset_bits_, sizeof offset_bits_);
  }

 private:
  ZeroPoint zero_point_;
  float levels_;
  float scale_ = 0, shift_ = 0;  // shift: the minimum, or z
  f16_t scale_bits_ = 0, offset_bits_ = 0;
};

struct StoredAffine {
  float scale, offset;
  float value(std::uint8_t code) const { return scale * static_cast<float>(code) + offset; }
};

inline StoredAffine load_affine(const std::uint8_t* src) {
  f16_t scale, offset;
  std::memcpy(&scale, src, sizeof scale);
  std::memcpy(&offset, src + sizeof scale, sizeof offset);
  return {f16_to_float(scale), f16_to_float(offset)};
}

}  // namespace oscar::methods

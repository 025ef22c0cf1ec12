// TurboQuant (2504.19874), its mean-square form: the row's norm, a random rotation, and the
// nearest of the levels that are optimal for a Gaussian. Without the residual sketch of the inner
// product form.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/f16.h"
#include "methods/bits.h"
#include "methods/definition.h"
#include "methods/hadamard.h"

namespace oscar::methods {
namespace {

// Lloyd-Max levels of a unit Gaussian, the positive ones.
constexpr float kLevels2[] = {0.45278003f, 1.51041761f};
constexpr float kLevels3[] = {0.24509418f, 0.75600528f, 1.34390928f, 2.15194570f};
constexpr float kLevels4[] = {0.12839503f, 0.38804830f, 0.65675912f, 0.94234046f,
                              1.25623120f, 1.61804639f, 2.06901723f, 2.73258957f};

// A token, head after head: codes | norm as a half. Level `code` of 2^bits ascending ones.
class TurboquantCoder : public RowCoder {
 public:
  explicit TurboquantCoder(const CoderInput& input)
      : RowCoder(input.num_kv_heads, input.head_dim, 1), bits_(input.quant.bits) {
    const float* const positive = bits_ == 2 ? kLevels2 : bits_ == 3 ? kLevels3 : kLevels4;
    const int half = 1 << (bits_ - 1);
    const float deviation = 1.0f / std::sqrt(static_cast<float>(input.head_dim));
    for (int i = 0; i < half; ++i) {
      levels_[static_cast<std::size_t>(half + i)] = positive[i] * deviation;
      levels_[static_cast<std::size_t>(half - 1 - i)] = -positive[i] * deviation;
    }
    for (int i = 0; i + 1 < 2 * half; ++i) {
      const auto index = static_cast<std::size_t>(i);
      borders_[index] = 0.5f * (levels_[index] + levels_[index + 1]);
    }
  }

  std::int64_t group_bytes() const override { return num_kv_heads() * head_bytes(); }

  std::int64_t encode(const float* rows, const std::int32_t*, int,
                      std::uint8_t* group) const override {
    std::array<std::uint8_t, kMaxHeadDim> codes;
    const auto end = borders_.begin() + ((1 << bits_) - 1);
    for (int head = 0; head < num_kv_heads(); ++head) {
      const float* const row = rows + std::int64_t{head} * head_dim();
      double square = 0;
      for (int i = 0; i < head_dim(); ++i) square += double{row[i]} * double{row[i]};
      const auto norm = static_cast<float>(std::sqrt(square));
      for (int i = 0; i < head_dim(); ++i) {
        const float unit = norm == 0.0f ? 0.0f : row[i] / norm;
        codes[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(
            std::upper_bound(borders_.begin(), end, unit) - borders_.begin());
      }
      std::uint8_t* const dst = group + head * head_bytes();
      pack_codes(codes.data(), head_dim(), bits_, dst);
      const f16_t stored = f16_from_float(norm);
      std::memcpy(dst + packed_bytes(head_dim(), bits_), &stored, sizeof stored);
    }
    return group_bytes();
  }

  void decode(const std::uint8_t* group, const std::int32_t*, int, int,
              float* rows) const override {
    std::array<std::uint8_t, kMaxHeadDim> codes;
    for (int head = 0; head < num_kv_heads(); ++head) {
      const std::uint8_t* const src = group + head * head_bytes();
      unpack_codes(src, head_dim(), bits_, codes.data());
      f16_t stored;
      std::memcpy(&stored, src + packed_bytes(head_dim(), bits_), sizeof stored);
      const float norm = f16_to_float(stored);
      float* const row = rows + std::int64_t{head} * head_dim();
      for (int i = 0; i < head_dim(); ++i) {
        row[i] = norm * levels_[codes[static_cast<std::size_t>(i)]];
      }
    }
  }

 private:
  std::int64_t head_bytes() const {
    return packed_bytes(head_dim(), bits_) + std::int64_t{sizeof(f16_t)};
  }

  int bits_;
  std::array<float, 16> levels_{};
  std::array<float, 15> borders_{};
};

std::vector<float> rotation(int head_dim) { return random_rotation(head_dim, 1); }

std::unique_ptr<RowCoder> make_coder(const CoderInput& input) {
  return std::make_unique<TurboquantCoder>(input);
}

}  // namespace

const Definition kTurboquant = {
    .summary = "random rotation, norm, Gaussian levels, per token",
    .k = {},
    .v = {},
    .takes_group = false,
    .legal_bits = {2, 3, 4},
    .k_rotation = rotation,
    .v_rotation = rotation,
    .key_coder = make_coder,
    .value_coder = make_coder,
};

}  // namespace oscar::methods

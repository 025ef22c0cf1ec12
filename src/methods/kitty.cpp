// Kitty (2511.18643): keys per channel over pages of 128 tokens at 2 bits, and 4 bits for the
// quarter of each head's channels with the largest mean magnitude; values per token at 2 bits.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "methods/bits.h"
#include "methods/channel_coder.h"
#include "methods/token_coder.h"

namespace oscar::methods {
namespace {

constexpr int kPlaneBits = 2, kPromotedBits = 4;
constexpr std::uint8_t kNotPromoted = 0xff;

// low two bits of every code [group_tokens][row] | high two bits of promoted channels
// [group_tokens][heads·head_dim/4, up to a multiple of 8] | scale and offset of each channel [row]
// | index of each channel among its head's promoted ones, or 255 [row].
class KittyCoder : public RowCoder {
 public:
  explicit KittyCoder(const CoderInput& input)
      : RowCoder(input.num_kv_heads, input.head_dim, input.quant.group_size),
        promoted_(input.head_dim / 4),
        high_width_((input.num_kv_heads * promoted_ + 7) / 8 * 8) {}

  std::int64_t group_bytes() const override { return index_at() + row_values(); }

  std::int64_t encode(const float* rows, const std::int32_t*, int count,
                      std::uint8_t* group) const override {
    const std::int64_t width = row_values();
    std::uint8_t* const index = group + index_at();
    for (int head = 0; head < num_kv_heads(); ++head) choose(rows, count, head, index);
    std::vector<std::uint8_t> low(static_cast<std::size_t>(group_tokens() * width), 0);
    std::vector<std::uint8_t> high(static_cast<std::size_t>(group_tokens() * high_width_), 0);
    for (std::int64_t channel = 0; channel < width; ++channel) {
      float min = rows[channel], max = rows[channel];
      for (int token = 1; token < count; ++token) {
        min = std::min(min, rows[token * width + channel]);
        max = std::max(max, rows[token * width + channel]);
      }
      const bool promoted = index[channel] != kNotPromoted;
      const Affine affine(ZeroPoint::kMinimum, promoted ? kPromotedBits : kPlaneBits, min, max);
      affine.store(group + scales_at() + channel * kAffineBytes);
      for (int token = 0; token < count; ++token) {
        const std::uint8_t code = affine.code(rows[token * width + channel]);
        low[static_cast<std::size_t>(token * width + channel)] = code & 3;
        if (promoted) high[static_cast<std::size_t>(high_index(token, channel, index))] = code >> 2;
      }
    }
    pack_codes(low.data(), std::ssize(low), kPlaneBits, group);
    pack_codes(high.data(), std::ssize(high), kPlaneBits, group + high_at());
    return group_bytes();
  }

  void decode(const std::uint8_t* group, const std::int32_t*, int first, int count,
              float* rows) const override {
    const std::int64_t width = row_values();
    const std::uint8_t* const index = group + index_at();
    std::vector<std::uint8_t> low(static_cast<std::size_t>(width));
    std::vector<std::uint8_t> high(static_cast<std::size_t>(high_width_));
    for (int token = 0; token < count; ++token) {
      unpack_codes(group + packed_bytes((first + token) * width, kPlaneBits), width, kPlaneBits,
                   low.data());
      unpack_codes(group + high_at() + packed_bytes((first + token) * high_width_, kPlaneBits),
                   high_width_, kPlaneBits, high.data());
      for (std::int64_t channel = 0; channel < width; ++channel) {
        std::uint8_t code = low[static_cast<std::size_t>(channel)];
        if (index[channel] != kNotPromoted) {
          code = static_cast<std::uint8_t>(
              code + 4 * high[static_cast<std::size_t>(high_index(0, channel, index))]);
        }
        const StoredAffine affine = load_affine(group + scales_at() + channel * kAffineBytes);
        rows[token * width + channel] = affine.value(code);
      }
    }
  }

 private:
  std::int64_t high_at() const { return packed_bytes(group_tokens() * row_values(), kPlaneBits); }
  std::int64_t scales_at() const {
    return high_at() + packed_bytes(group_tokens() * high_width_, kPlaneBits);
  }
  std::int64_t index_at() const { return scales_at() + row_values() * kAffineBytes; }
  std::int64_t high_index(std::int64_t token, std::int64_t channel,
                          const std::uint8_t* index) const {
    return token * high_width_ + channel / head_dim() * promoted_ + index[channel];
  }

  // The head's channels by mean magnitude, the largest first; of equal ones the lower.
  void choose(const float* rows, int count, int head, std::uint8_t* index) const {
    const std::int64_t begin = std::int64_t{head} * head_dim();
    std::vector<double> sums(static_cast<std::size_t>(head_dim()), 0.0);
    for (int token = 0; token < count; ++token) {
      for (int i = 0; i < head_dim(); ++i) {
        sums[static_cast<std::size_t>(i)] +=
            std::abs(static_cast<double>(rows[token * row_values() + begin + i]));
      }
    }
    std::vector<int> order(sums.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return sums[static_cast<std::size_t>(a)] > sums[static_cast<std::size_t>(b)];
    });
    std::sort(order.begin(), order.begin() + promoted_);
    std::fill_n(index + begin, head_dim(), kNotPromoted);
    for (int i = 0; i < promoted_; ++i) {
      index[begin + order[static_cast<std::size_t>(i)]] = static_cast<std::uint8_t>(i);
    }
  }

  int promoted_;
  std::int64_t high_width_;
};

}  // namespace

const Definition kKitty = {
    .summary = "keys per channel in groups of 128 tokens, a quarter of the channels at 4 bits",
    .k = {.group_size = 128},
    .v = {.group_size = 128},
    .token_groups = {128},
    .legal_bits = {2},
    .key_coder = [](const CoderInput& input) -> std::unique_ptr<RowCoder> {
      return std::make_unique<KittyCoder>(input);
    },
    .value_coder = make_minimum_token_coder,
};

}  // namespace oscar::methods

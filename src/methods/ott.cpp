// OTT (2505.10938): KIVI, but tokens whose keys are unusually small where the others are large stay
// exact and do not count for their group's range.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/bf16.h"
#include "methods/bits.h"
#include "methods/channel_coder.h"
#include "methods/token_coder.h"

namespace oscar::methods {
namespace {

constexpr int kMaxOutliers = 5;          // of one head and group
constexpr double kSmallPart = 0.5;       // of the group's median score
constexpr int kOutlierChannelShare = 4;  // a quarter of the head's channels is scored

// codes [group_tokens][row] | scale and offset of each channel [row] | number of outliers of each
// head | for each head its outliers, ascending: token in the group, BF16 row of the head.
class OttCoder : public RowCoder {
 public:
  explicit OttCoder(const CoderInput& input)
      : RowCoder(input.num_kv_heads, input.head_dim, input.quant.group_size),
        bits_(input.quant.bits) {}

  std::int64_t group_bytes() const override {
    return counts_at() + num_kv_heads() * (1 + kMaxOutliers * outlier_bytes());
  }

  std::int64_t encode(const float* rows, const std::int32_t*, int count,
                      std::uint8_t* group) const override {
    const std::int64_t width = row_values();
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(group_tokens() * width), 0);
    std::uint8_t* const counts = group + counts_at();
    std::uint8_t* next = counts + num_kv_heads();
    for (int head = 0; head < num_kv_heads(); ++head) {
      const std::int64_t begin = std::int64_t{head} * head_dim();
      const std::vector<int> outliers = find_outliers(rows, count, begin);
      std::vector<bool> is_outlier(static_cast<std::size_t>(count), false);
      for (const int token : outliers) is_outlier[static_cast<std::size_t>(token)] = true;
      for (std::int64_t channel = begin; channel < begin + head_dim(); ++channel) {
        float min = INFINITY, max = -INFINITY;
        for (int token = 0; token < count; ++token) {
          if (is_outlier[static_cast<std::size_t>(token)]) continue;
          min = std::min(min, rows[token * width + channel]);
          max = std::max(max, rows[token * width + channel]);
        }
        const Affine affine(ZeroPoint::kMinimum, bits_, min, max);
        affine.store(group + scales_at() + channel * kAffineBytes);
        for (int token = 0; token < count; ++token) {
          codes[static_cast<std::size_t>(token * width + channel)] =
              affine.code(rows[token * width + channel]);
        }
      }
      counts[head] = static_cast<std::uint8_t>(outliers.size());
      for (const int token : outliers) {
        *next++ = static_cast<std::uint8_t>(token);
        for (int i = 0; i < head_dim(); ++i) {
          const bf16_t value = bf16_from_float(rows[token * width + begin + i]);
          std::memcpy(next, &value, sizeof value);
          next += sizeof value;
        }
      }
    }
    pack_codes(codes.data(), std::ssize(codes), bits_, group);
    return next - group;
  }

  void decode(const std::uint8_t* group, const std::int32_t*, int first, int count,
              float* rows) const override {
    const std::int64_t width = row_values();
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(width));
    for (int token = 0; token < count; ++token) {
      unpack_codes(group + packed_bytes((first + token) * width, bits_), width, bits_,
                   codes.data());
      for (std::int64_t channel = 0; channel < width; ++channel) {
        rows[token * width + channel] = load_affine(group + scales_at() + channel * kAffineBytes)
                                            .value(codes[static_cast<std::size_t>(channel)]);
      }
    }
    const std::uint8_t* const counts = group + counts_at();
    const std::uint8_t* next = counts + num_kv_heads();
    for (int head = 0; head < num_kv_heads(); ++head) {
      for (int i = 0; i < counts[head]; ++i, next += outlier_bytes()) {
        const int token = *next - first;
        if (token < 0 || token >= count) continue;
        for (int c = 0; c < head_dim(); ++c) {
          bf16_t value;
          std::memcpy(&value, next + 1 + c * sizeof value, sizeof value);
          rows[token * width + std::int64_t{head} * head_dim() + c] = bf16_to_float(value);
        }
      }
    }
  }

 private:
  std::int64_t scales_at() const { return packed_bytes(group_tokens() * row_values(), bits_); }
  std::int64_t counts_at() const { return scales_at() + row_values() * kAffineBytes; }
  std::int64_t outlier_bytes() const { return 1 + head_dim() * std::int64_t{sizeof(bf16_t)}; }

  // Score of a token: the sum of magnitudes over the channels with the largest mean magnitude.
  // Tokens below half of the lower median, the smallest of them, ascending by token.
  std::vector<int> find_outliers(const float* rows, int count, std::int64_t begin) const {
    const auto magnitude = [&](int token, int channel) {
      return std::abs(static_cast<double>(rows[token * row_values() + begin + channel]));
    };
    std::vector<double> sums(static_cast<std::size_t>(head_dim()), 0.0);
    for (int token = 0; token < count; ++token) {
      for (int i = 0; i < head_dim(); ++i) sums[static_cast<std::size_t>(i)] += magnitude(token, i);
    }
    std::vector<int> channels(sums.size());
    std::iota(channels.begin(), channels.end(), 0);
    std::stable_sort(channels.begin(), channels.end(), [&](int a, int b) {
      return sums[static_cast<std::size_t>(a)] > sums[static_cast<std::size_t>(b)];
    });
    channels.resize(channels.size() / kOutlierChannelShare);
    std::sort(channels.begin(), channels.end());
    std::vector<double> scores(static_cast<std::size_t>(count), 0.0);
    for (int token = 0; token < count; ++token) {
      for (const int channel : channels)
        scores[static_cast<std::size_t>(token)] += magnitude(token, channel);
    }
    std::vector<int> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return scores[static_cast<std::size_t>(a)] < scores[static_cast<std::size_t>(b)];
    });
    const double median = scores[static_cast<std::size_t>(order[(order.size() - 1) / 2])];
    std::vector<int> outliers;
    for (const int token : order) {
      if (outliers.size() == kMaxOutliers ||
          scores[static_cast<std::size_t>(token)] >= kSmallPart * median) {
        break;
      }
      outliers.push_back(token);
    }
    std::sort(outliers.begin(), outliers.end());
    return outliers;
  }

  int bits_;
};

}  // namespace

const Definition kOtt = {
    .summary = "kivi, with tokens of unusually small keys kept exactly",
    .k = {.group_size = 64},
    .v = {.group_size = 64},
    .token_groups = {32, 64, 128},
    .values_follow_group = true,
    .legal_bits = {2, 3, 4},
    .key_coder = [](const CoderInput& input) -> std::unique_ptr<RowCoder> {
      return std::make_unique<OttCoder>(input);
    },
    .value_coder = make_minimum_token_coder,
};

}  // namespace oscar::methods

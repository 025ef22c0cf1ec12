// RotateKV (2501.16383): keys before RoPE, their channels in the order of the mean key, a Hadamard
// over up to four heads together, per token over groups of 128 channels; values with a Hadamard.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>

#include "base/error.h"
#include "methods/hadamard.h"
#include "methods/token_coder.h"

namespace oscar::methods {
namespace {

constexpr int kMaxHeadsTogether = 4;

bool is_power_of_two(int number) { return std::has_single_bit(static_cast<unsigned>(number)); }

int heads_together(int num_kv_heads) {
  int heads = kMaxHeadsTogether;
  while (num_kv_heads % heads != 0) heads /= 2;
  return heads;
}

// x ← x·H in place; size a power of two. Sums and differences at distance 1, 2, 4, ..., then
// 1/√size.
void hadamard_in_place(float* x, int size) {
  for (int half = 1; half < size; half *= 2) {
    for (int first = 0; first < size; first += 2 * half) {
      for (int i = first; i < first + half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(size));
  for (int i = 0; i < size; ++i) x[i] *= scale;
}

// What TokenCoder stores of the turned rows, the heads that are mixed together counting as one.
class RotatekvCoder : public RowCoder {
 public:
  explicit RotatekvCoder(const CoderInput& input)
      : RowCoder(input.num_kv_heads, input.head_dim, 1),
        together_(heads_together(input.num_kv_heads)),
        size_(together_ * input.head_dim),
        rope_(input.rope),
        tokens_({.num_kv_heads = input.num_kv_heads / together_,
                 .head_dim = size_,
                 .quant = input.quant,
                 .clip = input.clip.first(std::min(
                     input.clip.size(), static_cast<std::size_t>(input.num_kv_heads / together_))),
                 .mean = {},
                 .rope = nullptr},
                ZeroPoint::kInteger, channels_per_group(input.quant.group_size, size_)) {
    for (int first = 0; first < input.num_kv_heads; first += together_) {
      std::vector<int> order(static_cast<std::size_t>(size_));
      std::iota(order.begin(), order.end(), 0);
      if (!input.mean.empty()) {
        const float* const mean = input.mean.data() + std::int64_t{first} * input.head_dim;
        std::stable_sort(order.begin(), order.end(),
                         [mean](int a, int b) { return mean[a] < mean[b]; });
      }
      orders_.push_back(order);
    }
  }

  std::int64_t group_bytes() const override { return tokens_.group_bytes(); }

  std::int64_t encode(const float* rows, const std::int32_t* positions, int count,
                      std::uint8_t* group) const override {
    std::vector<float> before(rows, rows + row_values()), turned(before.size());
    for (int head = 0; head < num_kv_heads(); ++head) {
      rope_->rotate_back(before.data() + std::int64_t{head} * head_dim(), positions[0]);
    }
    for (std::size_t mix = 0; mix < orders_.size(); ++mix) {
      const std::size_t begin = mix * static_cast<std::size_t>(size_);
      for (std::size_t i = 0; i < orders_[mix].size(); ++i) {
        turned[begin + i] = before[begin + static_cast<std::size_t>(orders_[mix][i])];
      }
      hadamard_in_place(turned.data() + begin, size_);
    }
    return tokens_.encode(turned.data(), positions, count, group);
  }

  void decode(const std::uint8_t* group, const std::int32_t* positions, int first, int count,
              float* rows) const override {
    std::vector<float> turned(static_cast<std::size_t>(row_values()));
    tokens_.decode(group, positions, first, count, turned.data());
    for (std::size_t mix = 0; mix < orders_.size(); ++mix) {
      const std::size_t begin = mix * static_cast<std::size_t>(size_);
      hadamard_in_place(turned.data() + begin, size_);
      for (std::size_t i = 0; i < orders_[mix].size(); ++i) {
        rows[begin + static_cast<std::size_t>(orders_[mix][i])] = turned[begin + i];
      }
    }
    for (int head = 0; head < num_kv_heads(); ++head) {
      rope_->rotate(rows + std::int64_t{head} * head_dim(), positions[0]);
    }
  }

 private:
  int together_, size_;
  std::shared_ptr<const RopeTable> rope_;
  TokenCoder tokens_;
  std::vector<std::vector<int>> orders_;  // of each mix
};

void check_power_of_two(int head_dim) {
  if (is_power_of_two(head_dim)) return;
  throw Error(ErrorCode::kUnsupported,
              "rotatekv: head size " + std::to_string(head_dim) +
                  " is no power of two, which its Hadamard over whole heads needs");
}

}  // namespace

const Definition kRotatekv = {
    .summary = "keys before RoPE, reordered, Hadamard over heads, per token",
    .k = {},
    .v = {},
    .legal_bits = {2, 3, 4},
    .v_rotation = hadamard,
    .hadamard = false,
    .calibrated = true,
    .clip = {0.8f, 1.0f, 1.0f},
    .key_coder = [](const CoderInput& input) -> std::unique_ptr<RowCoder> {
      return std::make_unique<RotatekvCoder>(input);
    },
    .value_coder = make_integer_token_coder,
    .check_head_dim = check_power_of_two,
    .needs_rope = true,
};

}  // namespace oscar::methods

// OScaR (2605.19660): a Hadamard on keys and values, each key divided by its norm over all KV
// heads, then per channel over groups of tokens; values per token over groups of 32 channels.
#include <cmath>
#include <cstring>

#include "methods/channel_coder.h"
#include "methods/hadamard.h"
#include "methods/token_coder.h"

namespace oscar::methods {
namespace {

// What ChannelCoder stores of the normalised rows | norm of each token in single precision. The
// norm: squares summed in double, channel after channel; 1 for a row of zeros.
class OmniscaleCoder : public RowCoder {
 public:
  explicit OmniscaleCoder(const CoderInput& input)
      : RowCoder(input.num_kv_heads, input.head_dim, input.quant.group_size),
        channels_(input, ZeroPoint::kInteger) {}

  std::int64_t group_bytes() const override {
    return channels_.group_bytes() + group_tokens() * std::int64_t{sizeof(float)};
  }

  std::int64_t encode(const float* rows, const std::int32_t* positions, int count,
                      std::uint8_t* group) const override {
    std::vector<float> scaled(rows, rows + count * row_values());
    std::vector<float> norms(static_cast<std::size_t>(group_tokens()), 0.0f);
    for (int token = 0; token < count; ++token) {
      float* const row = scaled.data() + token * row_values();
      double square = 0;
      for (std::int64_t i = 0; i < row_values(); ++i) square += double{row[i]} * double{row[i]};
      const float norm = square == 0 ? 1.0f : static_cast<float>(std::sqrt(square));
      for (std::int64_t i = 0; i < row_values(); ++i) row[i] /= norm;
      norms[static_cast<std::size_t>(token)] = norm;
    }
    channels_.encode(scaled.data(), positions, count, group);
    std::memcpy(group + channels_.group_bytes(), norms.data(), norms.size() * sizeof(float));
    return group_bytes();
  }

  void decode(const std::uint8_t* group, const std::int32_t* positions, int first, int count,
              float* rows) const override {
    channels_.decode(group, positions, first, count, rows);
    for (int token = 0; token < count; ++token) {
      float norm;
      std::memcpy(&norm,
                  group + channels_.group_bytes() +
                      (first + token) * static_cast<std::int64_t>(sizeof norm),
                  sizeof norm);
      float* const row = rows + token * row_values();
      for (std::int64_t i = 0; i < row_values(); ++i) row[i] *= norm;
    }
  }

 private:
  ChannelCoder channels_;
};

}  // namespace

const Definition kOmniscale = {
    .summary = "Hadamard, token norms, keys per channel in groups of tokens (OScaR, 2605.19660)",
    .k = {.group_size = 32},
    .v = {.group_size = 32},
    .token_groups = {32, 64, 128},
    .legal_bits = {2, 3, 4},
    .k_rotation = hadamard,
    .v_rotation = hadamard,
    .hadamard = true,
    .key_coder = [](const CoderInput& input) -> std::unique_ptr<RowCoder> {
      return std::make_unique<OmniscaleCoder>(input);
    },
    .value_coder = make_integer_token_coder,
};

}  // namespace oscar::methods

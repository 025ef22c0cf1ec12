// Rows coded token by token, affine, with a scale for each group of channels.
#pragma once

#include "methods/affine.h"
#include "methods/definition.h"

namespace oscar::methods {

// Heads that are mixed together count as one of up to so many channels.
inline constexpr int kMaxTokenHead = 4 * kMaxHeadDim;

// A token, head after head: codes of the head | scale and offset of each group of channels.
// The range of a group is [clip·min, clip·max].
class TokenCoder : public RowCoder {
 public:
  TokenCoder(const CoderInput& input, ZeroPoint zero_point, int group_channels);

  std::int64_t group_bytes() const override { return num_kv_heads() * head_bytes_; }
  std::int64_t encode(const float* rows, const std::int32_t* positions, int count,
                      std::uint8_t* group) const override;
  void decode(const std::uint8_t* group, const std::int32_t* positions, int first, int count,
              float* rows) const override;

 private:
  ZeroPoint zero_point_;
  int bits_, group_channels_, num_groups_;
  std::int64_t head_bytes_;
  std::vector<float> clip_;  // [num_kv_heads]
};

// The largest multiple of 16 that is at most `wanted` and divides head_dim.
int channels_per_group(int wanted, int head_dim);

// For Definition::value_coder: groups of input.quant.group_size channels at most.
std::unique_ptr<RowCoder> make_minimum_token_coder(const CoderInput& input);
std::unique_ptr<RowCoder> make_integer_token_coder(const CoderInput& input);

}  // namespace oscar::methods

// Keys coded per channel over a group of consecutive tokens.
#pragma once

#include "methods/affine.h"
#include "methods/definition.h"

namespace oscar::methods {

// codes [group_tokens][row] | scale and offset of each channel of each head [row].
// A group that ended early has codes 0 for the tokens that it lacks.
class ChannelCoder : public RowCoder {
 public:
  ChannelCoder(const CoderInput& input, ZeroPoint zero_point);

  std::int64_t group_bytes() const override;
  std::int64_t encode(const float* rows, const std::int32_t* positions, int count,
                      std::uint8_t* group) const override;
  void decode(const std::uint8_t* group, const std::int32_t* positions, int first, int count,
              float* rows) const override;

 private:
  std::int64_t code_row_bytes() const;

  ZeroPoint zero_point_;
  int bits_;
};

}  // namespace oscar::methods

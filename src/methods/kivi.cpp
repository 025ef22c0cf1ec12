// KIVI (2402.02750): keys per channel over groups of tokens, values per token over groups of
// channels, the smallest value as the offset.
#include "methods/channel_coder.h"
#include "methods/token_coder.h"

namespace oscar::methods {

const Definition kKivi = {
    .summary = "keys per channel in groups of tokens, values per token",
    .k = {.group_size = 32},
    .v = {.group_size = 32},
    .token_groups = {32, 64, 128},
    .values_follow_group = true,
    .legal_bits = {2, 3, 4},
    .key_coder = [](const CoderInput& input) -> std::unique_ptr<RowCoder> {
      return std::make_unique<ChannelCoder>(input, ZeroPoint::kMinimum);
    },
    .value_coder = make_minimum_token_coder,
};

}  // namespace oscar::methods

// Where NaN or Inf comes from, when a model's logits hold it.
#pragma once

#include <span>
#include <string>

#include "eval/workbench.h"

namespace oscar::eval {

// Decodes `tokens` once more, looking at the output of every layer. One clause: the first layer and
// token whose output is not finite, or that all layers' outputs are; "" where the cache refuses to
// be opened or to decode a second time. Takes a forward pass of the tokens.
std::string trace_non_finite(Workbench* workbench, const KvChoice& kv,
                             std::span<const llama_token> tokens);

}  // namespace oscar::eval

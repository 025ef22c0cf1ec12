// Text from a model: prompt in, answer out, with the time that each took.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/context.h"

namespace oscar::eval {

struct SamplingOptions {
  float temperature = 0;    // 0: greedy, the other fields do not matter
  std::int32_t top_k = 40;  // 0: all
  float top_p = 0.95f;
  std::uint64_t seed = 1;  // below 2^32 − 1, which llama.cpp takes for a random one
};

struct Generation {
  std::string text;
  std::int64_t num_prompt_tokens = 0, num_new_tokens = 0;
  std::int64_t num_decode_steps = 0;  // one fewer than new tokens: the last is not fed back
  double prefill_seconds = 0, decode_seconds = 0;

  double prefill_tokens_per_second() const;
  double decode_tokens_per_second() const;  // 0 when nothing was decoded
};

// `context` is empty and has room for the prompt and max_new_tokens. `on_text` gets the answer as
// it grows, always whole characters. Stops at the model's end-of-generation token. Throws as decode
// does, and Error(kCorrupt) naming the token where the logits hold NaN or Inf.
Generation generate(Context* context, std::span<const llama_token> prompt,
                    std::int64_t max_new_tokens, const SamplingOptions& sampling,
                    const std::function<void(std::string_view)>& on_text);

// The user's text as the model's chat template wraps it. Empty: the model has no template that
// llama.cpp knows.
std::string apply_chat_template(const Model& model, const std::string& user_text);

}  // namespace oscar::eval

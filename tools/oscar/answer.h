// Prompts and answers: what `run` and `compare` share.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/generate.h"
#include "support.h"

namespace oscar::tool {

enum class Chat { kAuto, kOn, kOff };

// Tokens of the user's text, wrapped in the model's chat template (kAuto: where it has one).
// Throws Error(kUnsupported) when the template is asked for and missing.
std::vector<llama_token> prompt_tokens(const eval::Model& model, const std::string& text,
                                       Chat chat);

struct Answer {
  eval::KvChoice kv;
  eval::Generation generation;
  eval::KvUse use;  // when the answer was complete
};

// A context of num_tokens for each cache, one after the other.
Answer ask(eval::Workbench* workbench, const eval::KvChoice& kv,
           const std::vector<llama_token>& prompt, std::int64_t num_tokens,
           std::int64_t max_new_tokens, const eval::SamplingOptions& sampling,
           const std::function<void(std::string_view)>& on_text);

Json answer_json(const Answer& answer);

}  // namespace oscar::tool

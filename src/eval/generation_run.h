// Long greedy generations under several caches, beside those with f16.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "eval/agreement.h"
#include "eval/bootstrap.h"
#include "eval/workbench.h"

namespace oscar::eval {

struct GenerationOptions {
  std::int64_t prompt_tokens = 1024;  // of each prompt: stretches of the text, evenly spaced
  std::int64_t new_tokens = 256;
  std::int64_t num_prompts = 4;
  std::uint64_t seed = 1;  // of the confidence intervals
  std::function<void(std::int64_t done, std::int64_t total)> progress;  // tokens; may be null
};

inline constexpr int kNgram = 4;  // of overlap and repetition

// One text, compared with the reference's for the same prompt.
struct GeneratedText {
  TokenList tokens;
  std::string text;
  bool ended = false;              // the model ended it
  std::int64_t common_tokens = 0;  // first divergence: the index of the first other token
  double overlap1 = 0, overlap4 = 0;
  double repeated = 0;    // repeated_share of 4-grams
  std::int64_t loop = 0;  // loop_length
  double foreign = 0;     // foreign_share, against the prompt and the reference's text
};

struct GenerationRow {
  std::string kv;
  KvUse use;  // at the end of the last text
  std::vector<GeneratedText> texts;
  // Means over the texts; the prefix as a share of the reference's length.
  double common_share = 0, overlap1 = 0, overlap4 = 0, repeated = 0, foreign = 0;
  Interval common_interval;  // of common_share
  std::int64_t num_loops = 0, num_same = 0;
};

// The first row is f16, the reference; the others follow `kvs`. Throws Error(kInvalidArgument)
// where the text is too short for the prompts.
std::vector<GenerationRow> run_generations(Workbench* workbench, std::span<const llama_token> text,
                                           const std::vector<KvChoice>& kvs,
                                           const GenerationOptions& options);

}  // namespace oscar::eval

// Teacher-forced comparison of KV caches on a text: every cache sees the same tokens, and its
// prediction of each next token is scored over the last half of the context.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/scoring.h"
#include "eval/workbench.h"

namespace oscar::eval {

struct EvalOptions {
  std::int64_t context_tokens = 4096;
  std::int64_t num_windows = 1;  // of context_tokens each, one after the other in the text
  bool with_kl = true;           // false: perplexity alone, without reference and floor
  // Tokens decoded so far by all caches together, and of how many. May be null.
  std::function<void(std::int64_t done, std::int64_t total)> progress;
};

struct EvalRow {
  std::string kv;  // as given; "f16" is the reference, "f16:fa-off" the floor
  KvUse use;       // of one window
  std::int64_t context_tokens = 0;
  std::int64_t num_scored = 0;  // positions, over all windows
  double perplexity = 0;
  std::optional<KlSummary> kl;  // against f16 with flash attention; nats a token
  double top1 = 0;              // share of positions with the reference's most likely token
  double decode_seconds = 0;    // of the model and the cache, scoring left out
};

inline constexpr const char* kReferenceLabel = "f16";
inline constexpr const char* kFloorLabel = "f16:fa-off";
inline constexpr std::int64_t kMinEvalContext = 16;

// tokens: at least num_windows·context_tokens of them. With KL the first rows are the reference and
// the floor, whatever `kvs` holds; the others follow in its order. All caches live at once and step
// through the text together, so no logits are kept but those of one step. Throws as decode does.
std::vector<EvalRow> evaluate(Workbench* workbench, std::span<const llama_token> tokens,
                              const std::vector<KvChoice>& kvs, const EvalOptions& options);

}  // namespace oscar::eval

// Teacher-forced comparison of KV caches on a text: every cache sees the same tokens, and its
// prediction of each next token is scored over the last half of the context.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/bootstrap.h"
#include "eval/eval_state.h"
#include "eval/scoring.h"
#include "eval/step_plan.h"
#include "eval/workbench.h"

namespace oscar::eval {

struct EvalOptions {
  std::int64_t context_tokens = 4096;
  std::int64_t num_windows = 1;  // of context_tokens each, one after the other in the text
  bool with_kl = true;           // false: perplexity alone, without reference and floor
  bool by_position = false;      // with KL: also scores a part of the positions of the first half
  std::uint64_t seed = 1;        // of the confidence intervals
  // Windows that are done are kept here, and taken from here; "" for not at all. See EvalState.
  std::string state_path;
  std::string program_version;  // a state of another version is refused
  std::function<void(std::int64_t done, std::int64_t total)> resumed;  // windows; may be null
  // Tokens decoded so far by all caches together, and of how many. May be null.
  std::function<void(std::int64_t done, std::int64_t total)> progress;
};

// The positions of one range, over all windows.
struct PositionRow {
  PositionRange range;
  std::int64_t num_scored = 0;
  double kl_mean = 0;
  Interval kl_interval;
};

struct EvalRow {
  std::string kv;  // as given; "f16" is the reference, "f16:fa-off" the floor
  KvUse use;       // of one window
  std::int64_t context_tokens = 0;
  std::int64_t num_scored = 0;  // positions of the last half, over all windows
  double perplexity = 0;
  std::optional<KlSummary> kl;  // against f16 with flash attention; nats a token
  double top1 = 0;              // share of positions with the reference's most likely token
  // 95 %, by bootstrap_mean over blocks of kTokenBlock positions; those of KL and top1 with KL only
  Interval perplexity_interval, kl_interval, top1_interval;
  std::vector<PositionRow> by_position;  // ascending; all positions that were scored
  double decode_seconds = 0;             // of the model and the cache, scoring left out
};

inline constexpr const char* kReferenceLabel = "f16";
inline constexpr const char* kFloorLabel = "f16:fa-off";
inline constexpr std::int64_t kMinEvalContext = 16;

// tokens: at least num_windows·context_tokens of them. With KL the first rows are the reference and
// the floor, whatever `kvs` holds; the others follow in its order. All caches live at once and step
// through the text together, so the reference is computed once and no logits are kept but those of
// one step. Throws as decode does, naming the cache; Error(kInterrupted) says what was kept. The
// state file stays until the caller has written the results (EvalState::remove).
std::vector<EvalRow> evaluate(Workbench* workbench, std::span<const llama_token> tokens,
                              const std::vector<KvChoice>& kvs, const EvalOptions& options);

// The row of what one cache scored: `windows` in order, `steps` of each of them. Leaves `use`
// empty.
EvalRow summarize_lane(const std::vector<const WindowScores*>& windows,
                       const std::vector<EvalStep>& steps, const EvalOptions& options);

}  // namespace oscar::eval

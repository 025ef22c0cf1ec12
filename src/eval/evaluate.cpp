#include "eval/evaluate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "base/parallel.h"
#include "eval/non_finite_trace.h"

namespace oscar::eval {
namespace {

using Clock = std::chrono::steady_clock;

// Logits of one step, of one cache and of all together; the step gets shorter where the vocabulary
// is large or caches are many.
constexpr std::int64_t kLogitsBytesPerStep = std::int64_t{160} << 20;
constexpr std::int64_t kLogitsBytesOfAll = std::int64_t{1} << 30;
constexpr std::int64_t kMinScoredStep = 32;

std::int64_t scored_step_tokens(std::int64_t vocab_size, std::int64_t num_caches) {
  const std::int64_t bytes = std::min(kLogitsBytesPerStep, kLogitsBytesOfAll / num_caches);
  std::int64_t step = kBatchTokens;
  while (step > kMinScoredStep && step * vocab_size * 4 > bytes) step /= 2;
  return step;
}

// One cache: its context, and what the window that runs has scored.
struct Lane {
  KvChoice kv;
  std::unique_ptr<Context> context;
  WindowScores scores;
};

class Evaluation {
 public:
  Evaluation(Workbench* workbench, std::span<const llama_token> tokens, const EvalOptions& options)
      : workbench_(*workbench), tokens_(tokens), options_(options) {}

  std::vector<EvalRow> run(const std::vector<KvChoice>& kvs) {
    list_lanes(kvs);
    EvalState state(options_.state_path, identity(), lanes_.size());
    // What a cache holds at the end is only known of one that ran.
    if (std::ssize(state.windows()) >= options_.num_windows) state.drop_last();
    check(state);
    num_resumed_ = std::ssize(state.windows());
    if (num_resumed_ > 0 && options_.resumed) options_.resumed(num_resumed_, options_.num_windows);
    open_lanes();
    for (std::int64_t window = num_resumed_; window < options_.num_windows; ++window) {
      try {
        run_window(window);
      } catch (const Error& error) {
        throw_with_state(error, state);
      }
      std::vector<WindowScores> scores;
      for (Lane& lane : lanes_) scores.push_back(std::exchange(lane.scores, {}));
      state.add(std::move(scores));
    }
    return rows(state);
  }

 private:
  void list_lanes(const std::vector<KvChoice>& kvs) {
    if (options_.with_kl) {
      add_lane(choose_kv(kReferenceLabel));
      KvChoice floor = choose_kv(kReferenceLabel);
      floor.label = kFloorLabel;
      floor.flash_attention = false;
      add_lane(floor);
    }
    for (const KvChoice& kv : kvs) {
      if (!(options_.with_kl && kv.label == kReferenceLabel)) add_lane(kv);
    }
    step_tokens_ = scored_step_tokens(workbench_.model(Placement::kHost).vocab_size(),
                                      static_cast<std::int64_t>(lanes_.size()));
    steps_ = plan_steps(options_.context_tokens, kBatchTokens, step_tokens_,
                        options_.with_kl && options_.by_position);
  }

  void add_lane(const KvChoice& kv) {
    lanes_.emplace_back();
    lanes_.back().kv = kv;
  }

  RunIdentity identity() const {
    const std::int64_t used = options_.num_windows * options_.context_tokens;
    std::string kvs;
    for (const Lane& lane : lanes_) {
      kvs += (kvs.empty() ? "" : " ") + lane.kv.label;
      if (lane.kv.spec.kind != KvSpec::Kind::kFile) continue;
      const MappedFile artefact(lane.kv.spec.file);
      kvs += "@" + hash_hex(artefact.bytes().data(), artefact.bytes().size()).substr(0, 16);
    }
    return {
        {"version of oscar", options_.program_version},
        {"measure", options_.with_kl ? "kl" : "ppl"},
        {"model", workbench_.file().fingerprint.weights_hash},
        {"text", hash_hex(tokens_.data(), static_cast<std::uint64_t>(used) * sizeof(llama_token))},
        {"--ctx", std::to_string(options_.context_tokens)},
        {"--windows", std::to_string(options_.num_windows)},
        {"--kv", kvs},
        {"positions", options_.by_position ? "by range" : "last half"},
        {"llama.cpp", llama_version_text()}};
  }

  void check(const EvalState& state) const {
    const std::size_t expected = scored_positions(steps_, options_.context_tokens).size();
    for (const auto& window : state.windows()) {
      for (const WindowScores& scores : window) {
        if (scores.kl.size() == expected) continue;
        throw Error(ErrorCode::kCorrupt,
                    state.path() + ": a window has " + std::to_string(scores.kl.size()) +
                        " positions instead of " + std::to_string(expected) + "; delete the file");
      }
    }
  }

  void open_lanes() {
    for (Lane& lane : lanes_) {
      lane.context = workbench_.open(lane.kv, options_.context_tokens, step_tokens_);
    }
  }

  void run_window(std::int64_t window) {
    const std::int64_t length = options_.context_tokens;
    std::vector<llama_token> text(tokens_.begin() + window * length,
                                  tokens_.begin() + (window + 1) * length);
    // Every window starts as a text does.
    if (llama_vocab_get_add_bos(workbench_.vocab())) text[0] = llama_vocab_bos(workbench_.vocab());
    for (Lane& lane : lanes_) lane.context->clear();
    for (const EvalStep& plan : steps_) step(text, plan);
  }

  void step(const std::vector<llama_token>& text, const EvalStep& plan) {
    // The text's last token has no successor to be judged by.
    const std::int64_t first = plan.start + plan.count - plan.num_outputs;
    const std::int64_t num_rows =
        std::min(plan.num_outputs, static_cast<std::int64_t>(text.size()) - 1 - first);
    for (Lane& lane : lanes_) {
      const auto begin = Clock::now();
      try {
        lane.context->decode({text.data() + plan.start, static_cast<std::size_t>(plan.count)},
                             plan.num_outputs);
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kInterrupted) throw;
        throw Error(error.code(), "--kv " + lane.kv.label + ": " + error.what());
      }
      lane.scores.decode_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
      if (num_rows > 0) score(&lane, text, first, num_rows);
      tokens_done_ += plan.count;
      if (options_.progress) {
        options_.progress(tokens_done_, (options_.num_windows - num_resumed_) *
                                            options_.context_tokens *
                                            static_cast<std::int64_t>(lanes_.size()));
      }
    }
  }

  // Positions [first, first + num_rows), each against the token that follows it.
  void score(Lane* lane, const std::vector<llama_token>& text, std::int64_t first,
             std::int64_t num_rows) {
    const std::int64_t vocab_size = lane->context->model().vocab_size();
    std::vector<PositionScore> scores(static_cast<std::size_t>(num_rows));
    const Context& reference = *lanes_.front().context;
    const llama_token* next = text.data() + first + 1;
    parallel_for(workbench_.num_threads(), num_rows, [&](std::int64_t row, int) {
      PositionScore& score = scores[static_cast<std::size_t>(row)];
      const float* logits = lane->context->logits(row);
      if (options_.with_kl) {
        score = score_position(reference.logits(row), logits, vocab_size, next[row]);
      } else {
        score.log_prob = log_probability(logits, vocab_size, next[row]);
        score.finite = std::isfinite(score.log_prob);
      }
    });
    for (std::int64_t row = 0; row < num_rows; ++row) {
      const PositionScore& score = scores[static_cast<std::size_t>(row)];
      if (!score.finite) report_divergence(*lane, text, first + row);
      lane->scores.kl.push_back(score.kl);
      lane->scores.log_prob.push_back(score.log_prob);
      lane->scores.same_top.push_back(score.same_top);
    }
  }

  [[noreturn]] void report_divergence(const Lane& lane, const std::vector<llama_token>& text,
                                      std::int64_t token) {
    const std::string where =
        trace_non_finite(&workbench_, lane.kv, {text.data(), static_cast<std::size_t>(token) + 1});
    throw Error(ErrorCode::kCorrupt, "--kv " + lane.kv.label + ": the logits after token " +
                                         std::to_string(token) + " hold NaN or Inf" +
                                         (where.empty() ? "" : "; " + where));
  }

  [[noreturn]] void throw_with_state(const Error& error, const EvalState& state) const {
    if (error.code() != ErrorCode::kInterrupted || state.path().empty() ||
        state.windows().empty()) {
      throw error;
    }
    throw Error(ErrorCode::kInterrupted, "interrupted; " + std::to_string(state.windows().size()) +
                                             " of " + std::to_string(options_.num_windows) +
                                             " windows are kept in " + state.path() +
                                             ", and the same command goes on from there");
  }

  // Frees the contexts, last one first: the plugin reports on the newest cache that lives.
  std::vector<EvalRow> rows(const EvalState& state) {
    std::vector<EvalRow> rows(lanes_.size());
    for (std::size_t i = lanes_.size(); i-- > 0;) {
      Lane& lane = lanes_[i];
      std::vector<const WindowScores*> windows;
      for (const auto& window : state.windows()) windows.push_back(&window[i]);
      rows[i] = summarize_lane(windows, steps_, options_);
      rows[i].kv = lane.kv.label;
      rows[i].use = workbench_.use(*lane.context, lane.kv);
      lane.context.reset();
    }
    return rows;
  }

  Workbench& workbench_;
  std::span<const llama_token> tokens_;
  const EvalOptions& options_;
  std::vector<Lane> lanes_;
  std::vector<EvalStep> steps_;
  std::int64_t step_tokens_ = kBatchTokens;
  std::int64_t tokens_done_ = 0, num_resumed_ = 0;
};

}  // namespace

std::vector<EvalRow> evaluate(Workbench* workbench, std::span<const llama_token> tokens,
                              const std::vector<KvChoice>& kvs, const EvalOptions& options) {
  const std::int64_t needed = options.num_windows * options.context_tokens;
  if (options.context_tokens < kMinEvalContext) {
    throw Error(ErrorCode::kInvalidArgument,
                "a context of " + std::to_string(options.context_tokens) +
                    " tokens is too short to score; at least " + std::to_string(kMinEvalContext));
  }
  if (static_cast<std::int64_t>(tokens.size()) < needed) {
    throw Error(ErrorCode::kInvalidArgument, "the text has " + std::to_string(tokens.size()) +
                                                 " tokens; " + std::to_string(needed) +
                                                 " are needed");
  }
  return Evaluation(workbench, tokens, options).run(kvs);
}

}  // namespace oscar::eval

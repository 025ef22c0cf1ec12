#include "eval/evaluate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "base/parallel.h"

namespace oscar::eval {
namespace {

using Clock = std::chrono::steady_clock;

// Logits of one step and one cache; the step gets shorter where the vocabulary is large.
constexpr std::int64_t kLogitsBytesPerStep = std::int64_t{160} << 20;

std::int64_t scored_step_tokens(std::int64_t vocab_size) {
  std::int64_t step = kBatchTokens;
  while (step > 32 && step * vocab_size * 4 > kLogitsBytesPerStep) step /= 2;
  return step;
}

// One cache: its context, and what its positions scored.
struct Lane {
  KvChoice kv;
  std::unique_ptr<Context> context;
  std::vector<double> kl;
  double log_prob_sum = 0;
  std::int64_t num_scored = 0, num_same_top = 0;
  double decode_seconds = 0;
};

class Evaluation {
 public:
  Evaluation(Workbench* workbench, std::span<const llama_token> tokens, const EvalOptions& options)
      : workbench_(*workbench), tokens_(tokens), options_(options) {}

  std::vector<EvalRow> run(const std::vector<KvChoice>& kvs) {
    add_lanes(kvs);
    for (std::int64_t window = 0; window < options_.num_windows; ++window) run_window(window);
    return rows();
  }

 private:
  void add_lanes(const std::vector<KvChoice>& kvs) {
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
    step_tokens_ = scored_step_tokens(workbench_.model(Placement::kHost).vocab_size());
    for (Lane& lane : lanes_) {
      lane.context = workbench_.open(lane.kv, options_.context_tokens, step_tokens_);
    }
  }

  void add_lane(const KvChoice& kv) {
    lanes_.emplace_back();
    lanes_.back().kv = kv;
  }

  void run_window(std::int64_t window) {
    const std::int64_t length = options_.context_tokens;
    std::vector<llama_token> text(tokens_.begin() + window * length,
                                  tokens_.begin() + (window + 1) * length);
    // Every window starts as a text does.
    if (llama_vocab_get_add_bos(workbench_.vocab())) text[0] = llama_vocab_bos(workbench_.vocab());
    for (Lane& lane : lanes_) lane.context->clear();
    const std::int64_t half = length / 2;
    for (std::int64_t start = 0; start < length;) {
      const bool scored = start >= half;
      const std::int64_t limit = scored ? length : half;
      const std::int64_t count = std::min(scored ? step_tokens_ : kBatchTokens, limit - start);
      step(text, start, count, scored);
      start += count;
    }
  }

  void step(const std::vector<llama_token>& text, std::int64_t start, std::int64_t count,
            bool scored) {
    // The text's last token has no successor to be judged by.
    const std::int64_t num_rows =
        std::min(count, static_cast<std::int64_t>(text.size()) - 1 - start);
    for (Lane& lane : lanes_) {
      const auto begin = Clock::now();
      lane.context->decode({text.data() + start, static_cast<std::size_t>(count)},
                           scored ? count : 0);
      lane.decode_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
      if (scored) score(&lane, text.data() + start + 1, num_rows);
      tokens_done_ += count;
      if (options_.progress) {
        options_.progress(tokens_done_, options_.num_windows * options_.context_tokens *
                                            static_cast<std::int64_t>(lanes_.size()));
      }
    }
  }

  // next: [num_rows] the token that follows each position.
  void score(Lane* lane, const llama_token* next, std::int64_t num_rows) {
    const std::int64_t vocab_size = lane->context->model().vocab_size();
    std::vector<PositionScore> scores(static_cast<std::size_t>(num_rows));
    const Context& reference = *lanes_.front().context;
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
      if (!score.finite) {
        throw Error(ErrorCode::kCorrupt,
                    "--kv " + lane->kv.label + ": the logits " + std::to_string(num_rows - row) +
                        " positions before token " + std::to_string(lane->context->num_tokens()) +
                        " hold NaN or Inf");
      }
      lane->kl.push_back(score.kl);
      lane->log_prob_sum += score.log_prob;
      lane->num_same_top += score.same_top;
      ++lane->num_scored;
    }
  }

  // Frees the contexts, last one first: the plugin reports on the newest cache that lives.
  std::vector<EvalRow> rows() {
    std::vector<EvalRow> rows(lanes_.size());
    for (std::size_t i = lanes_.size(); i-- > 0;) {
      Lane& lane = lanes_[i];
      const auto num_scored = static_cast<double>(lane.num_scored);
      EvalRow& row = rows[i];
      row.kv = lane.kv.label;
      row.use = workbench_.use(*lane.context, lane.kv);
      row.context_tokens = options_.context_tokens;
      row.num_scored = lane.num_scored;
      row.perplexity = std::exp(-lane.log_prob_sum / num_scored);
      row.decode_seconds = lane.decode_seconds;
      if (options_.with_kl) {
        row.kl = summarize_kl(std::move(lane.kl));
        row.top1 = static_cast<double>(lane.num_same_top) / num_scored;
      }
      lane.context.reset();
    }
    return rows;
  }

  Workbench& workbench_;
  std::span<const llama_token> tokens_;
  const EvalOptions& options_;
  std::vector<Lane> lanes_;
  std::int64_t step_tokens_ = kBatchTokens;
  std::int64_t tokens_done_ = 0;
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

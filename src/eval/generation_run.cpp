#include "eval/generation_run.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "eval/evaluate.h"
#include "eval/scoring.h"
#include "eval/text.h"

namespace oscar::eval {
namespace {

class Generations {
 public:
  Generations(Workbench* workbench, std::span<const llama_token> text,
              const GenerationOptions& options, std::int64_t num_caches)
      : workbench_(*workbench), options_(options) {
    const std::int64_t room = std::ssize(text) - options.prompt_tokens;
    for (std::int64_t i = 0; i < options.num_prompts; ++i) {
      const std::int64_t start = options.num_prompts > 1 ? i * room / (options.num_prompts - 1) : 0;
      const auto part = text.subspan(static_cast<std::size_t>(start),
                                     static_cast<std::size_t>(options.prompt_tokens));
      prompts_.emplace_back(part.begin(), part.end());
      if (llama_vocab_get_add_bos(workbench_.vocab())) {
        prompts_.back()[0] = llama_vocab_bos(workbench_.vocab());
      }
    }
    total_ = num_caches * options.num_prompts * (options.prompt_tokens + options.new_tokens);
  }

  GenerationRow run(const KvChoice& kv) {
    GenerationRow row;
    row.kv = kv.label;
    const std::unique_ptr<Context> context =
        workbench_.open(kv, options_.prompt_tokens + options_.new_tokens, 1);
    for (const std::vector<llama_token>& prompt : prompts_) {
      context->clear();
      row.texts.push_back(generate_text(context.get(), prompt, kv.label));
    }
    row.use = workbench_.use(*context, kv);
    return row;
  }

  void compare(const GenerationRow& reference, GenerationRow* row) const {
    std::vector<double> shares;
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      const GeneratedText& wanted = reference.texts[i];
      GeneratedText& text = row->texts[i];
      text.common_tokens = common_prefix(text.tokens, wanted.tokens);
      text.overlap1 = ngram_overlap(text.tokens, wanted.tokens, 1);
      text.overlap4 = ngram_overlap(text.tokens, wanted.tokens, kNgram);
      text.repeated = repeated_share(text.tokens, kNgram);
      text.loop = loop_length(text.tokens);
      text.foreign = foreign_share(text.text, known_text(i, wanted));
      const auto longest = std::max({text.tokens.size(), wanted.tokens.size(), std::size_t{1}});
      const bool both_empty = text.tokens.empty() && wanted.tokens.empty();
      shares.push_back(both_empty ? 1.0
                                  : static_cast<double>(text.common_tokens) /
                                        static_cast<double>(longest));
      row->num_loops += text.loop > 0;
      row->num_same += text.tokens == wanted.tokens;
      const double weight = 1.0 / static_cast<double>(prompts_.size());
      row->common_share += weight * shares.back();
      row->overlap1 += weight * text.overlap1;
      row->overlap4 += weight * text.overlap4;
      row->repeated += weight * text.repeated;
      row->foreign += weight * text.foreign;
    }
    BootstrapOptions bootstrap;
    bootstrap.seed = options_.seed;
    row->common_interval = bootstrap_mean(shares, bootstrap);
  }

 private:
  std::string known_text(std::size_t prompt, const GeneratedText& reference) const {
    std::string known = reference.text;
    for (const llama_token token : prompts_[prompt]) known += token_text(workbench_.vocab(), token);
    return known;
  }

  void step(std::int64_t count) {
    done_ += count;
    if (options_.progress) options_.progress(done_, total_);
  }

  GeneratedText generate_text(Context* context, const std::vector<llama_token>& prompt,
                              const std::string& label) {
    for (std::size_t start = 0; start < prompt.size(); start += kBatchTokens) {
      const std::size_t count = std::min<std::size_t>(kBatchTokens, prompt.size() - start);
      context->decode(std::span(prompt).subspan(start, count), start + count == prompt.size());
      step(static_cast<std::int64_t>(count));
    }
    GeneratedText result;
    const std::int64_t vocab_size = context->model().vocab_size();
    for (std::int64_t i = 0; i < options_.new_tokens; ++i) {
      const float* logits = context->logits(0);
      if (!std::isfinite(log_probability(logits, vocab_size, 0))) {
        throw Error(ErrorCode::kCorrupt, "--kv " + label + ": the logits after token " +
                                             std::to_string(context->num_tokens() - 1) +
                                             " hold NaN or Inf");
      }
      const auto token =
          static_cast<llama_token>(std::max_element(logits, logits + vocab_size) - logits);
      result.ended = llama_vocab_is_eog(workbench_.vocab(), token);
      if (result.ended) break;
      result.tokens.push_back(token);
      result.text += token_text(workbench_.vocab(), token);
      if (i + 1 < options_.new_tokens) context->decode({&token, 1}, 1);
      step(1);
    }
    return result;
  }

  Workbench& workbench_;
  const GenerationOptions& options_;
  std::vector<std::vector<llama_token>> prompts_;
  std::int64_t done_ = 0, total_ = 0;
};

}  // namespace

std::vector<GenerationRow> run_generations(Workbench* workbench, std::span<const llama_token> text,
                                           const std::vector<KvChoice>& kvs,
                                           const GenerationOptions& options) {
  if (std::ssize(text) < options.prompt_tokens) {
    throw Error(ErrorCode::kInvalidArgument, "the text has " + std::to_string(text.size()) +
                                                 " tokens; a prompt needs " +
                                                 std::to_string(options.prompt_tokens));
  }
  std::vector<KvChoice> all = {choose_kv(kReferenceLabel)};
  for (const KvChoice& kv : kvs) {
    if (kv.label != kReferenceLabel) all.push_back(kv);
  }
  Generations generations(workbench, text, options, std::ssize(all));
  std::vector<GenerationRow> rows;
  for (const KvChoice& kv : all) rows.push_back(generations.run(kv));
  for (std::size_t i = rows.size(); i-- > 0;) generations.compare(rows[0], &rows[i]);
  return rows;
}

}  // namespace oscar::eval

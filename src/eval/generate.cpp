#include "eval/generate.h"

#include <chrono>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "eval/scoring.h"
#include "eval/text.h"

namespace oscar::eval {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct FreeSampler {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using Sampler = std::unique_ptr<llama_sampler, FreeSampler>;

Sampler make_sampler(const SamplingOptions& options) {
  Sampler chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
  if (options.temperature <= 0) {
    llama_sampler_chain_add(chain.get(), llama_sampler_init_greedy());
    return chain;
  }
  if (options.top_k > 0) {
    llama_sampler_chain_add(chain.get(), llama_sampler_init_top_k(options.top_k));
  }
  llama_sampler_chain_add(chain.get(), llama_sampler_init_top_p(options.top_p, 1));
  llama_sampler_chain_add(chain.get(), llama_sampler_init_temp(options.temperature));
  llama_sampler_chain_add(chain.get(),
                          llama_sampler_init_dist(static_cast<std::uint32_t>(options.seed)));
  return chain;
}

// Holds back the bytes of a character that is not whole yet.
class Streamer {
 public:
  explicit Streamer(const std::function<void(std::string_view)>& sink) : sink_(sink) {}

  void add(const std::string& piece) {
    pending_ += piece;
    const std::size_t whole = pending_.size() - incomplete_utf8_tail(pending_);
    if (sink_ && whole > 0) sink_(std::string_view(pending_).substr(0, whole));
    pending_.erase(0, whole);
  }

 private:
  const std::function<void(std::string_view)>& sink_;
  std::string pending_;
};

void check_finite(const Context& context) {
  const std::int64_t vocab_size = context.model().vocab_size();
  if (std::isfinite(log_probability(context.logits(0), vocab_size, 0))) return;
  throw Error(ErrorCode::kCorrupt,
              context.model().path() + ": the logits after token " +
                  std::to_string(context.num_tokens() - 1) +
                  " hold NaN or Inf; the model's weights or its cache are broken");
}

void prefill(Context* context, std::span<const llama_token> prompt) {
  for (std::size_t start = 0; start < prompt.size(); start += kBatchTokens) {
    const std::size_t count = std::min<std::size_t>(kBatchTokens, prompt.size() - start);
    const bool last = start + count == prompt.size();
    context->decode(prompt.subspan(start, count), last ? 1 : 0);
  }
}

}  // namespace

double Generation::prefill_tokens_per_second() const {
  return prefill_seconds > 0 ? static_cast<double>(num_prompt_tokens) / prefill_seconds : 0;
}

double Generation::decode_tokens_per_second() const {
  return decode_seconds > 0 ? static_cast<double>(num_decode_steps) / decode_seconds : 0;
}

Generation generate(Context* context, std::span<const llama_token> prompt,
                    std::int64_t max_new_tokens, const SamplingOptions& sampling,
                    const std::function<void(std::string_view)>& on_text) {
  Generation result;
  const llama_vocab* vocab = context->model().vocab();
  const Sampler sampler = make_sampler(sampling);
  Streamer streamer(on_text);
  result.num_prompt_tokens = static_cast<std::int64_t>(prompt.size());
  // Brings the weights into memory, so that the first cache measured is not the slowest for it.
  context->decode(prompt.first(1), 1);
  context->clear();
  auto start = Clock::now();
  prefill(context, prompt);
  result.prefill_seconds = seconds_since(start);
  check_finite(*context);
  start = Clock::now();
  for (std::int64_t i = 0; i < max_new_tokens; ++i) {
    const llama_token token = llama_sampler_sample(sampler.get(), context->get(), -1);
    if (llama_vocab_is_eog(vocab, token)) break;
    const std::string piece = token_text(vocab, token);
    result.text += piece;
    ++result.num_new_tokens;
    streamer.add(piece);
    // The last token's successor is not asked for, so it need not be decoded.
    if (i + 1 == max_new_tokens) break;
    context->decode({&token, 1}, 1);
    check_finite(*context);
    ++result.num_decode_steps;
  }
  result.decode_seconds = seconds_since(start);
  return result;
}

std::string apply_chat_template(const Model& model, const std::string& user_text) {
  const char* chat_template = llama_model_chat_template(model.get(), nullptr);
  if (chat_template == nullptr) return "";
  const llama_chat_message message = {"user", user_text.c_str()};
  std::string prompt(user_text.size() + 1024, '\0');
  for (int attempt = 0; attempt < 2; ++attempt) {
    const std::int32_t bytes =
        llama_chat_apply_template(chat_template, &message, 1, /*add_ass=*/true, prompt.data(),
                                  static_cast<std::int32_t>(prompt.size()));
    if (bytes < 0) return "";
    const bool fits = static_cast<std::size_t>(bytes) <= prompt.size();
    prompt.resize(static_cast<std::size_t>(bytes));
    if (fits) return prompt;
  }
  return prompt;
}

}  // namespace oscar::eval

#include "eval/fill_context.h"

#include <algorithm>

#include "base/error.h"

namespace oscar::eval {
namespace {

constexpr llama_seq_id kSequence = 0, kSpare = 1;
// Decoded after cells were copied, which also turns the copied keys to their positions. Few: many
// tokens at once in a deep cache of a quantized type take minutes.
constexpr std::int64_t kLastTokens = 4;

}  // namespace

ContextFiller::ContextFiller(Context* context, std::span<const llama_token> text)
    : context_(context), text_(text) {
  const llama_model* model = context->model().get();
  may_copy_ =
      llama_model_n_swa(model) == 0 && llama_memory_can_shift(llama_get_memory(context->get()));
}

llama_token ContextFiller::next_token() {
  return text_[static_cast<std::size_t>(depth_) % text_.size()];
}

void ContextFiller::decode(std::int64_t count) {
  std::vector<llama_token> tokens;
  for (std::int64_t i = 0; i < count; ++i, ++depth_) tokens.push_back(next_token());
  context_->decode(tokens, 0);
}

void ContextFiller::step() {
  const llama_token token = next_token();
  context_->decode({&token, 1}, 1);
  ++depth_;
}

bool ContextFiller::copy_prompt(std::int64_t count) {
  llama_context* context = context_->get();
  const llama_memory_t memory = llama_get_memory(context);
  if (llama_state_seq_set_data(context, prompt_state_.data(), prompt_state_.size(), kSpare) == 0) {
    return false;
  }
  if (count < kBatchTokens) {
    llama_memory_seq_rm(memory, kSpare, static_cast<llama_pos>(count), -1);
  }
  llama_memory_seq_add(memory, kSpare, 0, -1, static_cast<llama_pos>(depth_));
  llama_memory_seq_cp(memory, kSpare, kSequence, -1, -1);
  llama_memory_seq_rm(memory, kSpare, -1, -1);
  depth_ += count;
  return true;
}

void ContextFiller::fill_to(std::int64_t depth) {
  while (depth_ < depth) {
    const std::int64_t left = depth - depth_;
    if (may_copy_ && !prompt_state_.empty() && left > kLastTokens) {
      if (copy_prompt(std::min(left - kLastTokens, kBatchTokens))) continue;
      throw Error(ErrorCode::kUnsupported, "llama.cpp cannot restore a sequence's state of " +
                                               std::to_string(prompt_state_.size()) +
                                               " bytes, to fill the cache with");
    }
    const bool first = depth_ == 0;
    decode(std::min(left, kBatchTokens));
    if (!may_copy_ || !first || depth_ < kBatchTokens) continue;
    prompt_state_.resize(llama_state_seq_get_size(context_->get(), kSequence));
    llama_state_seq_get_data(context_->get(), prompt_state_.data(), prompt_state_.size(),
                             kSequence);
  }
}

}  // namespace oscar::eval

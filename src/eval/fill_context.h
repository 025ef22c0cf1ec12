// A deep context in little time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eval/context.h"

namespace oscar::eval {

// Fills one context, whose options gave it two sequences, to ascending depths. See bench_decode.
class ContextFiller {
 public:
  // The context is empty; both outlive the filler.
  ContextFiller(Context* context, std::span<const llama_token> text);

  std::int64_t depth() const { return depth_; }
  void fill_to(std::int64_t depth);
  void step();  // decodes one token

 private:
  llama_token next_token();
  void decode(std::int64_t count);
  bool copy_prompt(std::int64_t count);  // of its first tokens, to follow the last

  Context* context_;
  std::span<const llama_token> text_;
  std::int64_t depth_ = 0;
  bool may_copy_ = false;
  std::vector<std::uint8_t> prompt_state_;  // of the first kBatchTokens
};

}  // namespace oscar::eval

// Who answers questions about a document: a model here under some KV cache, or a server.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace oscar::eval {

struct AnswererUse {
  std::string label, method;
  double bits = 0;             // 0: not known
  std::uint64_t kv_bytes = 0;  // of the document; 0: not known
};

class Answerer {
 public:
  virtual ~Answerer() = default;
  // The questions that follow are about this document, and `use` is of it.
  virtual void read(std::string_view document) = 0;
  // Greedy, at most max_new_tokens. What was asked before makes no difference.
  virtual std::string answer(std::string_view question, std::int64_t max_new_tokens) = 0;
  virtual AnswererUse use() = 0;
  // Tokens of a text as the model counts them.
  virtual std::int64_t count_tokens(std::string_view text) = 0;
};

// Room in the context for what stands around the document: the chat template, the question and its
// answer.
inline constexpr std::int64_t kQuestionTokens = 128;
inline constexpr std::int64_t kMaxAnswerTokens = 32;
inline constexpr std::int64_t kReservedTokens = kQuestionTokens + kMaxAnswerTokens;

}  // namespace oscar::eval

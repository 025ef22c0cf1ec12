// Attention of one query over explicit keys and values, in fp64.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace oscar::reference {

struct Token {
  std::vector<double> key, value;  // as attended: k̂, v̂ in any one basis, the query in the same
  std::int64_t position = 0;
  double mask = 0;  // added to the logit after the soft cap; −inf hides
};

struct AttentionOptions {
  double scale = 1;     // on q·k
  double soft_cap = 0;  // > 0: logit = soft_cap·tanh(logit/soft_cap)
  bool causal = false;  // token position ≤ query position
  std::int64_t window =
      0;  // > 0: query position − token position < window, the query's own token counted
  double mask_slope = 1;       // ALiBi: on every mask value
  std::optional<double> sink;  // learned logit that takes part in the sum and has no value
};

struct AttentionResult {
  std::vector<double> out;  // [value size]; zeros when nothing is attended
  double lse;  // natural log of the sum, sink included; −inf when nothing is attended
};

AttentionResult attend(std::span<const double> query, std::int64_t query_position,
                       std::span<const Token> tokens, std::size_t value_size,
                       const AttentionOptions& options);

// Softmax of logits where −inf is masked; all masked: zeros.
std::vector<double> softmax(std::span<const double> logits);

double dot(std::span<const double> a, std::span<const double> b);

}  // namespace oscar::reference

#include "reference/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace oscar::reference {
namespace {

constexpr double kHidden = -std::numeric_limits<double>::infinity();

double logit_of(std::span<const double> query, std::int64_t query_position, const Token& token,
                const AttentionOptions& options) {
  if (options.causal && token.position > query_position) return kHidden;
  if (options.window > 0 && query_position - token.position >= options.window) return kHidden;
  if (token.mask == kHidden) return kHidden;
  double logit = options.scale * dot(query, token.key);
  if (options.soft_cap > 0) logit = options.soft_cap * std::tanh(logit / options.soft_cap);
  return logit + options.mask_slope * token.mask;
}

}  // namespace

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

std::vector<double> softmax(std::span<const double> logits) {
  std::vector<double> weights(logits.size(), 0.0);
  const double max = logits.empty() ? kHidden : *std::max_element(logits.begin(), logits.end());
  if (max == kHidden) return weights;
  double sum = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) sum += weights[i] = std::exp(logits[i] - max);
  for (double& weight : weights) weight /= sum;
  return weights;
}

AttentionResult attend(std::span<const double> query, std::int64_t query_position,
                       std::span<const Token> tokens, std::size_t value_size,
                       const AttentionOptions& options) {
  std::vector<double> logits;
  for (const Token& token : tokens) {
    logits.push_back(logit_of(query, query_position, token, options));
  }
  if (options.sink) logits.push_back(*options.sink);

  AttentionResult result{std::vector<double>(value_size, 0.0), kHidden};
  const std::vector<double> weights = softmax(logits);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    if (weights[t] == 0) continue;  // a hidden token's value may be anything
    for (std::size_t c = 0; c < value_size; ++c) result.out[c] += weights[t] * tokens[t].value[c];
  }
  const double max = logits.empty() ? kHidden : *std::max_element(logits.begin(), logits.end());
  if (max == kHidden) return result;
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - max);
  result.lse = max + std::log(sum);
  return result;
}

}  // namespace oscar::reference

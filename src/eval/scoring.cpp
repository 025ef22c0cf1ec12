#include "eval/scoring.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace oscar::eval {
namespace {

// e^x for x ≤ 0, written so that compilers vectorise it: x = n·ln 2 + r, e^r by its Taylor series
// to r⁷ (|r| ≤ ln 2 / 2, remainder below 6e-9), 2ⁿ through the exponent bits. NaN stays NaN.
inline float exp_non_positive(float x) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693145752f, kLn2Low = 1.42860677e-6f;
  constexpr float kRound =
      12582912.0f;  // 1.5·2²³: adding it leaves the nearest integer in the low bits
  constexpr float kLowest = -87.0f;  // e^-87 is the smallest result that is not denormal
  x = x < kLowest ? kLowest : x;
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const std::uint32_t exponent =
      (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(kRound) + 127u) << 23;
  return p * std::bit_cast<float>(exponent);
}

float largest(const float* values, std::int64_t count) {
  float result = values[0];
#pragma omp simd reduction(max : result)
  for (std::int64_t i = 0; i < count; ++i) result = values[i] > result ? values[i] : result;
  return result;
}

std::int64_t index_of(const float* values, std::int64_t count, float value) {
  return std::find(values, values + count, value) - values;
}

}  // namespace

PositionScore score_position(const float* reference, const float* candidate,
                             std::int64_t vocab_size, std::int32_t next_token) noexcept {
  const float reference_max = largest(reference, vocab_size);
  const float candidate_max = largest(candidate, vocab_size);
  double reference_sum = 0, candidate_sum = 0, weighted = 0;
#pragma omp simd reduction(+ : reference_sum, candidate_sum, weighted)
  for (std::int64_t i = 0; i < vocab_size; ++i) {
    const float r = reference[i] - reference_max;
    const float c = candidate[i] - candidate_max;
    const float weight = exp_non_positive(r);
    reference_sum += static_cast<double>(weight);
    candidate_sum += static_cast<double>(exp_non_positive(c));
    weighted += static_cast<double>(weight) * static_cast<double>(r - c);
  }
  PositionScore score;
  // Σ p·(log p − log q), with log p = r − log Σe^r and log q = c − log Σe^c. Never negative but for
  // rounding.
  const double kl = weighted / reference_sum - std::log(reference_sum) + std::log(candidate_sum);
  score.finite = std::isfinite(kl) && std::isfinite(reference_max) && std::isfinite(candidate_max);
  score.kl = std::max(kl, 0.0);
  score.log_prob = static_cast<double>(candidate[next_token]) - static_cast<double>(candidate_max) -
                   std::log(candidate_sum);
  score.same_top = index_of(reference, vocab_size, reference_max) ==
                   index_of(candidate, vocab_size, candidate_max);
  return score;
}

double log_probability(const float* logits, std::int64_t vocab_size, std::int32_t token) noexcept {
  const float max = largest(logits, vocab_size);
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < vocab_size; ++i) {
    sum += static_cast<double>(exp_non_positive(logits[i] - max));
  }
  return static_cast<double>(logits[token]) - static_cast<double>(max) - std::log(sum);
}

KlSummary summarize_kl(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto count = static_cast<std::int64_t>(values.size());
  const auto total = [](auto first, auto last) { return std::accumulate(first, last, 0.0); };
  KlSummary summary;
  summary.mean = total(values.begin(), values.end()) / static_cast<double>(count);
  summary.median = 0.5 * (values[static_cast<std::size_t>((count - 1) / 2)] +
                          values[static_cast<std::size_t>(count / 2)]);
  const std::int64_t cut = count / 10;
  summary.trimmed10 =
      total(values.begin() + cut, values.end() - cut) / static_cast<double>(count - 2 * cut);
  const auto rank = static_cast<std::int64_t>(std::ceil(0.99 * static_cast<double>(count)));
  summary.p99 = values[static_cast<std::size_t>(std::max<std::int64_t>(rank, 1) - 1)];
  return summary;
}

}  // namespace oscar::eval

// One position's logits against the reference's: the arithmetic under KL divergence and perplexity.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace oscar::eval {

struct PositionScore {
  double kl = 0;        // KL(reference ‖ candidate) in nats, ≥ 0
  double log_prob = 0;  // natural log of the candidate's probability of the token that follows
  bool same_top = false;
  bool finite = false;  // false: some logit is NaN or +Inf; the other fields mean nothing
};

// logits: [vocab_size]. Exponentials in float (relative error below 3e-7), sums in double, so the
// absolute error of kl and log_prob is below 1e-6 for logits within ±100.
PositionScore score_position(const float* reference, const float* candidate,
                             std::int64_t vocab_size, std::int32_t next_token) noexcept;

// Natural log of the probability of `token`. NaN when some logit is NaN or +Inf.
double log_probability(const float* logits, std::int64_t vocab_size, std::int32_t token) noexcept;

struct KlSummary {
  double mean = 0;
  double median = 0;
  double trimmed10 = 0;  // mean without the lowest and the highest tenth: ⌊n/10⌋ values at each end
  double p99 = 0;        // the smallest value that 99 % of the positions do not exceed
};

// `values` may be in any order and not empty.
KlSummary summarize_kl(std::vector<double> values);

}  // namespace oscar::eval

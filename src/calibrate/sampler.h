// Which tokens a fixed-size sample holds, as a function of the token's index alone: every layer,
// head and side makes the same choice, whatever chunks the text arrives in.
#pragma once

#include <cstdint>

namespace oscar::calibrate {

// Reservoir sampling (algorithm R) with a counter-based random number per token. The first
// `num_kept` tokens are always in the sample, in the first slots.
class Sampler {
 public:
  Sampler(std::uint64_t seed, std::int64_t capacity, std::int64_t num_kept);

  // The slot that token `index` (from 0) takes, replacing what was there; −1: not sampled.
  std::int64_t slot(std::int64_t index) const;
  std::int64_t num_kept() const { return num_kept_; }

 private:
  std::uint64_t seed_;
  std::int64_t capacity_, num_kept_;
};

}  // namespace oscar::calibrate

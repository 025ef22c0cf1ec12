// Confidence intervals of means by resampling.
#pragma once

#include <cstdint>
#include <span>

namespace oscar::eval {

struct Interval {
  double low = 0, high = 0;
};

struct BootstrapOptions {
  std::uint64_t seed = 1;
  std::int64_t num_resamples = 1000;
  // Neighbours drawn together. Above 1 where values that follow each other are alike, as those of
  // consecutive tokens are; values that are independent need 1.
  std::int64_t block_length = 1;
  double level = 0.95;
};

inline constexpr std::int64_t kTokenBlock = 32;  // of consecutive positions of a text

// The interval of the mean between the percentiles (1 ± level)/2 of resampled means: circular block
// bootstrap (Politis and Romano 1992). The same on every machine for one seed. `values` is not
// empty; one value, or a block as long as all, gives an interval of width 0.
Interval bootstrap_mean(std::span<const double> values, const BootstrapOptions& options);

}  // namespace oscar::eval

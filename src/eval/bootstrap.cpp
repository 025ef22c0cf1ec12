#include "eval/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace oscar::eval {
namespace {

// sums[i] = Σ of the first i values of the list written out twice, so that blocks may wrap around.
std::vector<double> prefix_sums(std::span<const double> values) {
  std::vector<double> sums = {0};
  for (int round = 0; round < 2; ++round) {
    for (const double value : values) sums.push_back(sums.back() + value);
  }
  return sums;
}

}  // namespace

Interval bootstrap_mean(std::span<const double> values, const BootstrapOptions& options) {
  const auto count = static_cast<std::int64_t>(values.size());
  const std::int64_t block = std::clamp<std::int64_t>(options.block_length, 1, count);
  const std::vector<double> sums = prefix_sums(values);
  std::mt19937_64 random(options.seed);
  std::vector<double> means;
  for (std::int64_t resample = 0; resample < options.num_resamples; ++resample) {
    double sum = 0;
    for (std::int64_t taken = 0; taken < count; taken += block) {
      const std::int64_t length = std::min(block, count - taken);
      // The high half of the product is uniform over [0, count); the standard's distributions
      // differ between libraries.
      const auto start =
          static_cast<std::size_t>((random() >> 32) * static_cast<std::uint64_t>(count) >> 32);
      sum += sums[start + static_cast<std::size_t>(length)] - sums[start];
    }
    means.push_back(sum / static_cast<double>(count));
  }
  std::sort(means.begin(), means.end());
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(means.size() - 1);
    return means[static_cast<std::size_t>(std::llround(place))];
  };
  return {at((1 - options.level) / 2), at((1 + options.level) / 2)};
}

}  // namespace oscar::eval

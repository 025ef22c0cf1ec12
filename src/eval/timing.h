// Repeated timings and what they come to.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

namespace oscar::eval {

using TimingClock = std::chrono::steady_clock;

inline double seconds_since(TimingClock::time_point start) {
  return std::chrono::duration<double>(TimingClock::now() - start).count();
}

// The middle, and what 10 % lie below and above.
struct Spread {
  double median = 0, p10 = 0, p90 = 0;
};

// Of at least one sample; between samples by a straight line.
inline Spread spread_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double share) {
    const double index = share * static_cast<double>(samples.size() - 1);
    const auto low = static_cast<std::size_t>(index);
    const std::size_t high = std::min(low + 1, samples.size() - 1);
    return samples[low] + (index - static_cast<double>(low)) * (samples[high] - samples[low]);
  };
  return {at(0.5), at(0.1), at(0.9)};
}

}  // namespace oscar::eval

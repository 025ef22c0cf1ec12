#include "reference/rotation.h"

#include <cmath>
#include <cstddef>
#include <numbers>

namespace oscar::reference {

void rotate_by_position(std::span<double> x, const RopeSpec& spec, double position) {
  for (int f = 0; f < spec.num_pairs(); ++f) {
    const double angle = double{spec.inv_freq[static_cast<std::size_t>(f)]} * position;
    double& first = x[static_cast<std::size_t>(spec.first(f))];
    double& second = x[static_cast<std::size_t>(spec.second(f))];
    const double a = first, b = second, magnitude = spec.magnitude;
    first = magnitude * (a * std::cos(angle) - b * std::sin(angle));
    second = magnitude * (a * std::sin(angle) + b * std::cos(angle));
  }
}

void hadamard(std::span<double> x) {
  if (x.size() == 1) return;
  const std::size_t half = x.size() / 2;
  for (std::size_t i = 0; i < half; ++i) {
    const double a = x[i], b = x[half + i];
    x[i] = (a + b) / std::numbers::sqrt2;
    x[half + i] = (a - b) / std::numbers::sqrt2;
  }
  hadamard(x.first(half));
  hadamard(x.last(half));
}

unsigned reverse_bits(unsigned index, int num_bits) {
  unsigned reversed = 0;
  for (int i = 0; i < num_bits; ++i) reversed |= ((index >> i) & 1u) << (num_bits - 1 - i);
  return reversed;
}

}  // namespace oscar::reference

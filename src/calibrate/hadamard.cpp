#include "calibrate/hadamard.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>

#include "base/error.h"
#include "calibrate/methods.h"

namespace oscar::calibrate {
namespace {

// Sylvester's construction in closed form: the sign of entry (i, j) is the parity of i & j.
double hadamard_entry(unsigned i, unsigned j, int size) {
  return (std::popcount(i & j) % 2 == 0 ? 1.0 : -1.0) / std::sqrt(static_cast<double>(size));
}

// Discrete Hartley transform: cas(2π·i·j/size)/√size is orthonormal and symmetric for every size.
double hartley_entry(int i, int j, int size) {
  const double angle = 2.0 * std::numbers::pi * ((i * j) % size) / size;
  return (std::cos(angle) + std::sin(angle)) / std::sqrt(static_cast<double>(size));
}

unsigned reverse_bits(unsigned value, int num_bits) {
  unsigned reversed = 0;
  for (int bit = 0; bit < num_bits; ++bit)
    reversed |= ((value >> bit) & 1u) << (num_bits - 1 - bit);
  return reversed;
}

}  // namespace

std::vector<double> hadamard_times_p_double(int head_dim) {
  if (head_dim < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "head size " + std::to_string(head_dim) + " has no Hadamard; legal: 1 and above");
  }
  const int log_power = std::countr_zero(static_cast<unsigned>(head_dim));
  const int power = 1 << log_power;
  const int odd = head_dim / power;
  std::vector<double> matrix(static_cast<std::size_t>(head_dim) * head_dim);
  for (int i = 0; i < head_dim; ++i) {
    for (int j = 0; j < head_dim; ++j) {
      // Channel = power part · odd + odd part.
      const unsigned row = static_cast<unsigned>(i / odd);
      const unsigned column = static_cast<unsigned>(j / odd);
      const double mix =
          odd == 1 ? hadamard_entry(row, reverse_bits(column, log_power), power)
                   : hadamard_entry(row, column, power) * hartley_entry(i % odd, j % odd, odd);
      matrix[static_cast<std::size_t>(i) * head_dim + j] = mix;
    }
  }
  return matrix;
}

std::vector<float> hadamard_times_p(int head_dim) {
  const std::vector<double> matrix = hadamard_times_p_double(head_dim);
  return std::vector<float>(matrix.begin(), matrix.end());
}

}  // namespace oscar::calibrate

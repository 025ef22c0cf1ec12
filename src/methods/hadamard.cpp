#include "methods/hadamard.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>

#include "base/error.h"

namespace oscar::methods {
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

std::uint64_t splitmix64(std::uint64_t* state) {
  std::uint64_t z = *state += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

std::vector<double> mix_matrix(int head_dim, bool reverse_order) {
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
          odd == 1
              ? hadamard_entry(row, reverse_order ? reverse_bits(column, log_power) : column, power)
              : hadamard_entry(row, column, power) * hartley_entry(i % odd, j % odd, odd);
      matrix[static_cast<std::size_t>(i) * head_dim + j] = mix;
    }
  }
  return matrix;
}

std::vector<float> to_floats(const std::vector<double>& values) {
  return std::vector<float>(values.begin(), values.end());
}

}  // namespace

std::vector<double> hadamard_times_p_double(int head_dim) { return mix_matrix(head_dim, true); }

std::vector<float> hadamard_times_p(int head_dim) {
  return to_floats(hadamard_times_p_double(head_dim));
}

std::vector<double> hadamard_double(int head_dim) { return mix_matrix(head_dim, false); }

std::vector<float> hadamard(int head_dim) { return to_floats(hadamard_double(head_dim)); }

int bit_reversed(int channel, int head_dim) {
  return static_cast<int>(reverse_bits(static_cast<unsigned>(channel),
                                       std::countr_zero(static_cast<unsigned>(head_dim))));
}

std::vector<float> block_hadamard(int head_dim, int order) {
  const std::vector<float> block = hadamard(order);
  std::vector<float> matrix(static_cast<std::size_t>(head_dim) * head_dim, 0.0f);
  for (int i = 0; i < head_dim; ++i) {
    const int first = i / order * order;
    for (int j = 0; j < order; ++j) {
      matrix[static_cast<std::size_t>(i) * head_dim + first + j] =
          block[static_cast<std::size_t>(i - first) * order + j];
    }
  }
  return matrix;
}

float channel_sign(int channel) {
  std::uint64_t state = 0, output = 0;
  for (int i = 0; i <= channel; ++i) output = splitmix64(&state);
  return output >> 63 == 0 ? 1.0f : -1.0f;
}

std::vector<float> signed_hadamard(int head_dim) {
  std::vector<float> matrix = hadamard(head_dim);
  for (int i = 0; i < head_dim; ++i) {
    const float sign = channel_sign(i);
    for (int j = 0; j < head_dim; ++j) matrix[static_cast<std::size_t>(i) * head_dim + j] *= sign;
  }
  return matrix;
}

std::vector<float> random_rotation(int head_dim, unsigned seed) {
  std::uint64_t state = seed;
  const auto uniform = [&state] {
    return (static_cast<double>(splitmix64(&state) >> 11) + 0.5) * 0x1p-53;
  };
  const auto dim = static_cast<std::size_t>(head_dim);
  std::vector<double> matrix(dim * dim);
  for (std::size_t i = 0; i < matrix.size(); i += 2) {
    const double radius = std::sqrt(-2.0 * std::log(uniform()));
    const double angle = 2.0 * std::numbers::pi * uniform();
    matrix[i] = radius * std::cos(angle);
    if (i + 1 < matrix.size()) matrix[i + 1] = radius * std::sin(angle);
  }
  for (std::size_t row = 0; row < dim; ++row) {
    double* const r = matrix.data() + row * dim;
    for (std::size_t before = 0; before < row; ++before) {
      const double* const b = matrix.data() + before * dim;
      double dot = 0;
      for (std::size_t i = 0; i < dim; ++i) dot += r[i] * b[i];
      for (std::size_t i = 0; i < dim; ++i) r[i] -= dot * b[i];
    }
    double square = 0;
    for (std::size_t i = 0; i < dim; ++i) square += r[i] * r[i];
    const double inverse = 1.0 / std::sqrt(square);
    for (std::size_t i = 0; i < dim; ++i) r[i] *= inverse;
  }
  return to_floats(matrix);
}

}  // namespace oscar::methods

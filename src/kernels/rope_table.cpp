#include "kernels/rope_table.h"

#include <cmath>
#include <string>
#include <utility>

#include "base/error.h"

namespace oscar {
namespace {

void fill_rotations(const RopeSpec& spec, double position, double* out) {
  for (int f = 0; f < spec.num_pairs(); ++f) {
    const double angle = static_cast<double>(spec.inv_freq[static_cast<std::size_t>(f)]) * position;
    out[2 * f] = std::cos(angle);
    out[2 * f + 1] = std::sin(angle);
  }
}

}  // namespace

RopeTable::RopeTable(RopeSpec spec, std::int32_t max_position) : spec_(std::move(spec)) {
  if (max_position < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "max_position " + std::to_string(max_position) + " must not be negative");
  }
  if (!std::isfinite(spec_.magnitude) || spec_.magnitude <= 0) {
    throw Error(ErrorCode::kInvalidArgument, "RoPE magnitude " + std::to_string(spec_.magnitude) +
                                                 " must be finite and positive");
  }
  const std::size_t stride = 2 * spec_.inv_freq.size();
  const auto num_hi = static_cast<std::size_t>(max_position / kRopeTile) + 1;
  lo_.resize(kRopeTile * stride);
  hi_.resize(num_hi * stride);
  for (int lo = 0; lo < kRopeTile; ++lo) fill_rotations(spec_, lo, lo_.data() + lo * stride);
  for (std::size_t hi = 0; hi < num_hi; ++hi) {
    fill_rotations(spec_, static_cast<double>(hi) * kRopeTile, hi_.data() + hi * stride);
  }
  tile_.resize(lo_.size());
  for (std::size_t i = 0; i < lo_.size(); ++i) tile_[i] = static_cast<float>(lo_[i]);
}

RopeTable::Rotation RopeTable::rotation(std::int32_t position, int pair) const {
  const std::size_t stride = 2 * spec_.inv_freq.size(), column = 2 * static_cast<std::size_t>(pair);
  const std::size_t first_hi = static_cast<std::size_t>(position / kRopeTile) * stride + column;
  if (first_hi >= hi_.size()) {
    const double angle = static_cast<double>(spec_.inv_freq[column / 2]) * position;
    return {std::cos(angle), std::sin(angle)};
  }
  const double* hi = hi_.data() + first_hi;
  const double* lo = lo_.data() + static_cast<std::size_t>(position % kRopeTile) * stride + column;
  return {hi[0] * lo[0] - hi[1] * lo[1], hi[1] * lo[0] + hi[0] * lo[1]};
}

void RopeTable::rotate(float* x, std::int32_t position) const {
  if (position < 0) return rotate_back(x, -position);
  for (int f = 0; f < spec_.num_pairs(); ++f) {
    float& first = x[spec_.first(f)];
    float& second = x[spec_.second(f)];
    const Rotation by = rotation(position, f);
    const double a = first, b = second, magnitude = spec_.magnitude;
    first = static_cast<float>((a * by.cos - b * by.sin) * magnitude);
    second = static_cast<float>((a * by.sin + b * by.cos) * magnitude);
  }
}

void RopeTable::rotate_back(float* x, std::int32_t position) const {
  if (position < 0) return rotate(x, -position);
  for (int f = 0; f < spec_.num_pairs(); ++f) {
    float& first = x[spec_.first(f)];
    float& second = x[spec_.second(f)];
    const Rotation by = rotation(position, f);
    const double a = first, b = second, magnitude = spec_.magnitude;
    first = static_cast<float>((a * by.cos + b * by.sin) / magnitude);
    second = static_cast<float>((b * by.cos - a * by.sin) / magnitude);
  }
}

float RopeTable::fold(const float* q, const float* b, int head_dim, std::int32_t start,
                      float* coefficients) const {
  for (int f = 0; f < spec_.num_pairs(); ++f) {
    const double q1 = q[spec_.first(f)], q2 = q[spec_.second(f)];
    const double b1 = b[spec_.first(f)], b2 = b[spec_.second(f)];
    // q·RoPE_j(b) = even·cos(w·j) + odd·sin(w·j); then the angle sum for j = start + lo.
    const double even = (q1 * b1 + q2 * b2) * spec_.magnitude;
    const double odd = (q2 * b1 - q1 * b2) * spec_.magnitude;
    const Rotation by = rotation(start, f);
    coefficients[2 * f] = static_cast<float>(even * by.cos + odd * by.sin);
    coefficients[2 * f + 1] = static_cast<float>(odd * by.cos - even * by.sin);
  }
  double constant = 0;
  for (int c = spec_.rotated_dims(); c < head_dim; ++c) constant += double{q[c]} * b[c];
  return static_cast<float>(constant);
}

}  // namespace oscar

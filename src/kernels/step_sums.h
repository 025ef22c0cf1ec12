// How long sums of products of bytes stay exact. Included after one ISA header of simd/.
#pragma once

namespace oscar::kernels {
namespace {

// Calls of add_*_products between widenings that keep their sums within kProductLimit.
constexpr int steps_between_widenings(int largest_code, int largest_byte) {
  const int steps = simd::kProductLimit / (2 * largest_code * largest_byte);
  return steps < 4 ? steps : steps / 4 * 4;
}

}  // namespace
}  // namespace oscar::kernels

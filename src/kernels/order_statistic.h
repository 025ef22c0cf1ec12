// Exact order statistics of magnitudes. Included after one ISA header of simd/.
#pragma once

namespace oscar::kernels {
namespace {

// Bits of the largest |x|; NaN and Inf compare above every finite value. size is a multiple of 16.
inline std::uint32_t largest_magnitude(const float* x, int size) {
  simd::U largest{};
  for (int c = 0; c < size; c += simd::kWidth) {
    largest = simd::max(largest, simd::magnitude_bits(simd::load(x + c)));
  }
  return simd::reduce_max(largest);
}

inline int count_at_most(const float* x, int size, std::uint32_t threshold_bits) {
  const simd::U threshold = simd::broadcast_bits(threshold_bits);
  simd::U counts{};
  for (int c = 0; c < size; c += simd::kWidth) {
    simd::count_at_most(counts, simd::magnitude_bits(simd::load(x + c)), threshold);
  }
  return static_cast<int>(simd::reduce_add(counts));
}

// Bits of the rank-th smallest |x|, rank in [1, size]: bisection over the bits, which order as the
// values do.
inline std::uint32_t order_statistic(const float* x, int size, int rank) {
  // Invariant: count(≤ high) ≥ rank, count(≤ low) < rank (or low is −1).
  std::int64_t high = largest_magnitude(x, size), low = -1;
  // Quantiles of interest mostly lie within a factor of four of the largest.
  const std::int64_t guess = high - (std::int64_t{2} << 23);
  if (guess > 0) {
    const bool is_below = count_at_most(x, size, static_cast<std::uint32_t>(guess)) < rank;
    (is_below ? low : high) = guess;
  }
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    const bool is_below =
        middle < 0 || count_at_most(x, size, static_cast<std::uint32_t>(middle)) < rank;
    (is_below ? low : high) = middle;
  }
  return static_cast<std::uint32_t>(high);
}

}  // namespace
}  // namespace oscar::kernels

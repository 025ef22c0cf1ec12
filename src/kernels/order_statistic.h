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

// Bits of the largest |x| ≤ threshold; 0 if there is none.
inline std::uint32_t largest_at_most(const float* x, int size, std::uint32_t threshold_bits) {
  const simd::U threshold = simd::broadcast_bits(threshold_bits);
  simd::U largest{};
  for (int c = 0; c < size; c += simd::kWidth) {
    const simd::U magnitude = simd::magnitude_bits(simd::load(x + c));
    largest = simd::max(largest, magnitude <= threshold ? magnitude : simd::U{});
  }
  return simd::reduce_max(largest);
}

// Bits of the rank-th smallest |x|, rank in [1, size]. Bits of magnitudes order as the values do,
// so they are bisected until a threshold has exactly `rank` values at or below it, or (ties) until
// the interval is one value.
inline std::uint32_t order_statistic(const float* x, int size, int rank) {
  // count(≤ high) > rank or high is the largest; count(< low) < rank.
  std::uint32_t high = largest_magnitude(x, size), low = 0;
  // Quantiles of interest mostly lie within a factor of four of the largest.
  constexpr std::uint32_t kFactorOfFour = 2u << 23;
  std::uint32_t middle = high > kFactorOfFour ? high - kFactorOfFour : high / 2;
  while (low < high) {
    const int count = count_at_most(x, size, middle);
    if (count == rank) return largest_at_most(x, size, middle);
    if (count < rank) {
      low = middle + 1;
    } else {
      high = middle;
    }
    middle = low + (high - low) / 2;
  }
  return high;
}

}  // namespace
}  // namespace oscar::kernels

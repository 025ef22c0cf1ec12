// e^x for x ≤ 0 in vectors. Included after one ISA header of simd/.
#pragma once

namespace oscar::kernels {
namespace {

// Relative error below 2 ulp for x in [−64, 0]; 0 below that, −inf included: such weights vanish
// beside the largest, which is 1, and their products would be subnormal, which is slow.
//
// e^x = 2^n·e^r, n = round(x/ln 2), |r| ≤ ln 2/2. e^r by the polynomial of degree 6 that has the
// smallest relative error beside the fixed 1 + r: 3.7e-9, a sixteenth of an ulp. ln 2 is split so
// that n·(high part) is exact for |n| < 2^9.
inline simd::F exp_nonpositive(simd::F x) {
  const simd::F lowest = simd::broadcast(-64.0f);
  const simd::I is_counted = x >= lowest;
  const simd::F clamped = simd::max(x, lowest);
  const simd::F n = simd::round_to_integer(clamped * 1.44269504f);
  simd::F r = simd::fma(n, simd::broadcast(-0.693359375f), clamped);
  r = simd::fma(n, simd::broadcast(2.12194440e-4f), r);
  constexpr float kCoefficients[] = {0.00836874545f, 0.041668389f, 0.166665211f,
                                     0.49999994f,    1.0f,         1.0f};
  simd::F y = simd::broadcast(0.00138145406f);
#pragma GCC unroll 8
  for (const float coefficient : kCoefficients) {
    y = simd::fma(y, r, simd::broadcast(coefficient));
  }
  return is_counted ? simd::times_power_of_two(y, n) : simd::F{};
}

}  // namespace
}  // namespace oscar::kernels

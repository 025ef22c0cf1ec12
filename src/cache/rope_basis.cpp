#include "cache/rope_basis.h"

#include <cmath>
#include <numbers>

namespace oscar::cache {
namespace {

constexpr double kMiddle = (kRopeTile - 1) / 2.0;  // 31.5

// Coefficients of cos(phase·x) in the even and of sin(phase·x) in the odd polynomials: the discrete
// cosine sums over the Chebyshev nodes, exact up to terms of degree 2·kNodes − 16 and more.
void fit_chebyshev(double phase, float* coefficients) {
  constexpr int kNodes = 2 * RopeBasis::kPolynomials;
  for (int degree = 0; degree < RopeBasis::kPolynomials; ++degree) {
    double sum = 0;
    for (int node = 0; node < kNodes; ++node) {
      const double angle = std::numbers::pi * (node + 0.5) / kNodes;
      const double x = phase * std::cos(angle);
      sum += (degree % 2 == 0 ? std::cos(x) : std::sin(x)) * std::cos(degree * angle);
    }
    coefficients[degree] = static_cast<float>(sum * (degree == 0 ? 1.0 : 2.0) / kNodes);
  }
}

}  // namespace

RopeBasis::RopeBasis(const RopeSpec& spec) {
  for (int f = 0; f < spec.num_pairs(); ++f) {
    (std::abs(spec.inv_freq[f]) * kMiddle <= kMaxSlowPhase ? slow_ : fast_).push_back(f);
  }
  step_turn_.resize(std::size_t{2} * kernels::kMeanPairFloats);
  float* step = step_turn_.data();
  for (const std::vector<int>* pairs : {&fast_, &slow_}) {
    for (const int f : *pairs) {
      const double angle = static_cast<double>(spec.inv_freq[f]) * kRopeTile;
      step[0] = step[1] = static_cast<float>(std::cos(angle));
      step[kernels::kMeanPairFloats] = static_cast<float>(std::sin(angle));
      step[kernels::kMeanPairFloats + 1] = -step[kernels::kMeanPairFloats];
      step += 2;
    }
  }
  for (const int f : fast_) {
    for (const bool is_sine : {false, true}) {
      for (int i = 0; i < kRopeTile; ++i) {
        const double angle = static_cast<double>(spec.inv_freq[f]) * i;
        columns_.push_back(static_cast<float>(is_sine ? std::sin(angle) : std::cos(angle)));
      }
    }
  }
  for (int degree = 0; degree < kPolynomials; ++degree) {
    for (int i = 0; i < kRopeTile; ++i) {
      columns_.push_back(static_cast<float>(std::cos(degree * std::acos((i - kMiddle) / kMiddle))));
    }
  }
  chebyshev_.resize(slow_.size() * kPolynomials);
  for (std::size_t i = 0; i < slow_.size(); ++i) {
    const double phase = spec.inv_freq[slow_[i]] * kMiddle;
    middle_.push_back(std::cos(phase));
    middle_.push_back(std::sin(phase));
    fit_chebyshev(phase, chebyshev_.data() + i * kPolynomials);
  }
}

}  // namespace oscar::cache

#include "cache/rope_basis.h"

#include <cmath>
#include <numbers>

namespace oscar::cache {
namespace {

constexpr double kMiddle = (kRopeTile - 1) / 2.0;  // 31.5

// Degree of the polynomial in place k: 0, 2, … 14, 1, 3, … 15.
int degree_of(int k) { return k < RopeBasis::kEven ? 2 * k : 2 * (k - RopeBasis::kEven) + 1; }

// Coefficients of cos(phase·x) in the even and of sin(phase·x) in the odd polynomials: the discrete
// cosine sums over the Chebyshev nodes, exact up to terms of degree 2·kNodes − 16 and more.
void fit_chebyshev(double phase, float* coefficients) {
  constexpr int kNodes = 2 * RopeBasis::kPolynomials;
  for (int k = 0; k < RopeBasis::kPolynomials; ++k) {
    const int degree = degree_of(k);
    double sum = 0;
    for (int node = 0; node < kNodes; ++node) {
      const double angle = std::numbers::pi * (node + 0.5) / kNodes;
      const double x = phase * std::cos(angle);
      sum += (degree % 2 == 0 ? std::cos(x) : std::sin(x)) * std::cos(degree * angle);
    }
    coefficients[k] = static_cast<float>(sum * (degree == 0 ? 1.0 : 2.0) / kNodes);
  }
}

}  // namespace

RopeBasis::RopeBasis(const RopeSpec& spec) {
  for (int f = 0; f < spec.num_pairs(); ++f) {
    (std::abs(spec.inv_freq[f]) * kMiddle <= kMaxSlowPhase ? slow_ : fast_).push_back(f);
  }
  for (const std::vector<int>* pairs : {&fast_, &slow_}) {
    for (const int f : *pairs) {
      const double angle = static_cast<double>(spec.inv_freq[f]) * kRopeTile;
      step_cos_.push_back(std::cos(angle));
      step_sin_.push_back(std::sin(angle));
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
  for (int k = 0; k < kPolynomials; ++k) {
    for (int i = 0; i < kRopeTile; ++i) {
      columns_.push_back(
          static_cast<float>(std::cos(degree_of(k) * std::acos((i - kMiddle) / kMiddle))));
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

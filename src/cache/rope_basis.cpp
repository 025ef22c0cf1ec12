#include "cache/rope_basis.h"

#include <cmath>
#include <numbers>

namespace oscar::cache {
namespace {

constexpr double kMiddle = (kRopeTile - 1) / 2.0;  // 31.5

double phase_of(const RopeSpec& spec, int pair) {
  return std::abs(static_cast<double>(spec.inv_freq[pair])) * kMiddle;
}

// The coefficient of degree `degree` of cos(phase·x) if it is even, of sin(phase·x) if it is odd:
// the discrete cosine sum over the Chebyshev nodes, exact up to terms of degree 2·kNodes − 16.
double chebyshev_coefficient(double phase, int degree) {
  constexpr int kNodes = 2 * RopeBasis::kPolynomials;
  double sum = 0;
  for (int node = 0; node < kNodes; ++node) {
    const double angle = std::numbers::pi * (node + 0.5) / kNodes;
    const double x = phase * std::cos(angle);
    sum += (degree % 2 == 0 ? std::cos(x) : std::sin(x)) * std::cos(degree * angle);
  }
  return sum * (degree == 0 ? 1.0 : 2.0) / kNodes;
}

}  // namespace

RopeBasis::RopeBasis(const RopeSpec& spec) {
  place_pairs(spec);
  fill_turns(spec);
  fill_columns(spec);
  fill_series(spec);
}

void RopeBasis::place_pairs(const RopeSpec& spec) {
  std::array<std::vector<int>, kNumLevels> slow;
  for (int f = 0; f < spec.num_pairs(); ++f) {
    int level = kNumLevels - 1;
    while (level >= 0 && phase_of(spec, f) > kMaxSlowPhase[level]) --level;
    (level < 0 ? pairs_ : slow[level]).push_back(f);
  }
  num_fast_ = static_cast<int>(pairs_.size());
  for (int level = 0; level < kNumLevels; ++level) {
    const std::size_t pairs_a_block = std::size_t{1} << level;
    while (slow[level].size() % pairs_a_block != 0) slow[level].push_back(-1);
    num_blocks_[level] = static_cast<int>(slow[level].size() / pairs_a_block);
    pairs_.insert(pairs_.end(), slow[level].begin(), slow[level].end());
  }
}

void RopeBasis::fill_turns(const RopeSpec& spec) {
  step_turn_.resize(std::size_t{2} * kernels::kMeanPairFloats);
  for (int place = 0; place < num_places(); ++place) {
    const double w = pair(place) < 0 ? 0.0 : static_cast<double>(spec.inv_freq[pair(place)]);
    middle_.push_back(std::cos(w * kMiddle));
    middle_.push_back(std::sin(w * kMiddle));
    if (pair(place) < 0) continue;
    float* const step = step_turn_.data() + 2 * place;
    step[0] = step[1] = static_cast<float>(std::cos(w * kRopeTile));
    step[kernels::kMeanPairFloats] = static_cast<float>(std::sin(w * kRopeTile));
    step[kernels::kMeanPairFloats + 1] = -step[kernels::kMeanPairFloats];
  }
}

void RopeBasis::fill_columns(const RopeSpec& spec) {
  constexpr int kHalf = kRopeTile / 2;
  for (int i = 0; i < num_fast_; ++i) {
    const double w = spec.inv_freq[pair(i)];
    for (int x = 0; x < kHalf; ++x) columns_.push_back(static_cast<float>(std::cos(w * (x + 0.5))));
    for (int x = 0; x < kHalf; ++x) columns_.push_back(static_cast<float>(std::sin(w * (x + 0.5))));
  }
  for (int degree = 0; degree < kPolynomials; ++degree) {
    for (int x = 0; x < kHalf; ++x) {
      columns_.push_back(static_cast<float>(std::cos(degree * std::acos((x + 0.5) / kMiddle))));
    }
  }
}

void RopeBasis::fill_series(const RopeSpec& spec) {
  int place = num_fast_;
  for (int level = 0; level < kNumLevels; ++level) {
    const int pairs_a_block = 1 << level;
    for (int block = 0; block < num_blocks_[level]; ++block, place += pairs_a_block) {
      for (int i = 0; i < kPolynomials; ++i) {
        const int degree = i / (2 * pairs_a_block) * 2 + i % 2;
        const int f = pair(place + i % (2 * pairs_a_block) / 2);
        const double w = f < 0 ? 0.0 : static_cast<double>(spec.inv_freq[f]);
        series_.push_back(f < 0 ? 0.0f
                                : static_cast<float>(chebyshev_coefficient(w * kMiddle, degree)));
      }
    }
  }
}

}  // namespace oscar::cache

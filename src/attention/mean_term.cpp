#include "attention/mean_term.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "attention/page_mask.h"

namespace oscar::attention {
namespace {

using cache::RopeBasis;

// Whether every seen cell t < num_cells holds position start + t.
bool follows(const std::int32_t* positions, int num_cells, std::uint64_t seen, std::int32_t start) {
  std::int32_t differences = 0;
  for (int t = 0; t < num_cells; ++t) differences |= positions[t] ^ (start + t);
  if (differences == 0) return true;
  for (std::uint64_t left = seen; left != 0; left &= left - 1) {
    const int t = std::countr_zero(left);
    if (positions[t] != start + t) return false;
  }
  return true;
}

}  // namespace

MeanTerm::MeanTerm(const cache::LayerCodec& codec, int kv_head, std::int64_t num_rows,
                   const Scratch& scratch) noexcept
    : codec_(codec), scratch_(scratch), num_rows_(num_rows) {
  const float* const mean = codec.key_mean(kv_head);
  if (mean == nullptr) return;
  active_ = true;
  basis_ = codec.rope_basis();
  if (basis_ != nullptr) {
    load_pairs(mean);
    return;
  }
  const int dim = codec.k_layout().head_dim;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    double sum = 0;
    for (int d = 0; d < dim; ++d) sum += double{scratch.q_raw[row * dim + d]} * mean[d];
    scratch.mean_constant[row] = static_cast<float>(sum);
  }
}

// mean_fast [row][num_fast][2]: A, B at a tile's start. mean_slow [row][num_slow][2]: A, B at its
// middle.
void MeanTerm::load_pairs(const float* mean) noexcept {
  const RopeTable& rope = *codec_.rope();
  const int dim = codec_.k_layout().head_dim, num_fast = basis_->num_fast(),
            num_slow = basis_->num_slow();
  std::array<float, kMaxHeadDim> pairs;
  for (std::int64_t row = 0; row < num_rows_; ++row) {
    scratch_.mean_constant[row] = rope.fold(scratch_.q_raw + row * dim, mean, dim, 0, pairs.data());
    float* const fast = scratch_.mean_fast + row * 2 * num_fast;
    for (int i = 0; i < num_fast; ++i) {
      fast[2 * i] = pairs[2 * basis_->fast_pair(i)];
      fast[2 * i + 1] = pairs[2 * basis_->fast_pair(i) + 1];
    }
    float* const slow = scratch_.mean_slow + row * 2 * num_slow;
    for (int i = 0; i < num_slow; ++i) {
      const double a = pairs[2 * basis_->slow_pair(i)], b = pairs[2 * basis_->slow_pair(i) + 1];
      slow[2 * i] = static_cast<float>(a * basis_->middle_cos(i) + b * basis_->middle_sin(i));
      slow[2 * i + 1] = static_cast<float>(b * basis_->middle_cos(i) - a * basis_->middle_sin(i));
    }
  }
}

void MeanTerm::add_constant(float* logits) const noexcept {
  for (std::int64_t row = 0; row < num_rows_; ++row) {
    const float constant = scratch_.mean_constant[row];
    for (int t = 0; t < kPageSize; ++t) logits[row * kPageSize + t] += constant;
  }
}

// A cos(w(s + i)) + B sin(w(s + i)) = (A cos ws + B sin ws) cos wi + (B cos ws − A sin ws) sin wi.
void MeanTerm::fold_fast_pairs() const noexcept {
  const int num_fast = basis_->num_fast();
  std::array<float, kMaxHeadDim / 2> cosines, sines;
  for (int i = 0; i < num_fast; ++i) {
    cosines[i] = static_cast<float>(cosines_[i]);
    sines[i] = static_cast<float>(sines_[i]);
  }
  for (std::int64_t row = 0; row < num_rows_; ++row) {
    const float* const pairs = scratch_.mean_fast + row * 2 * num_fast;
    float* const folded = scratch_.mean_folded + row * basis_->num_columns();
    for (int i = 0; i < num_fast; ++i) {
      folded[2 * i] = pairs[2 * i] * cosines[i] + pairs[2 * i + 1] * sines[i];
      folded[2 * i + 1] = pairs[2 * i + 1] * cosines[i] - pairs[2 * i] * sines[i];
    }
  }
}

// The polynomials' coefficients are linear in A and B: one small matrix a tile, shared by all rows.
void MeanTerm::project_slow_pairs() const noexcept {
  constexpr int kPolynomials = RopeBasis::kPolynomials;
  const int num_slow = basis_->num_slow(), num_columns = basis_->num_columns();
  float* const coefficients = scratch_.mean_folded + 2 * basis_->num_fast();
  for (std::int64_t row = 0; row < num_rows_; ++row)
    std::fill_n(coefficients + row * num_columns, kPolynomials, 0.0f);
  if (num_slow == 0) return;
  for (int i = 0; i < num_slow; ++i) {
    const float* const series = basis_->chebyshev(i);
    const float cosine = static_cast<float>(cosines_[basis_->num_fast() + i]);
    const float sine = static_cast<float>(sines_[basis_->num_fast() + i]);
    std::array<float, 2 * kPolynomials> of_a_and_b;
    for (int k = 0; k < RopeBasis::kEven; ++k) {
      of_a_and_b[k] = cosine * series[k];
      of_a_and_b[kPolynomials + k] = sine * series[k];
    }
    for (int k = RopeBasis::kEven; k < kPolynomials; ++k) {
      of_a_and_b[k] = -sine * series[k];
      of_a_and_b[kPolynomials + k] = cosine * series[k];
    }
    std::copy(of_a_and_b.begin(), of_a_and_b.end(),
              scratch_.mean_projection + i * of_a_and_b.size());
  }
  codec_.kernels().accumulate_tile({.p = scratch_.mean_slow,
                                    .v = scratch_.mean_projection,
                                    .out = coefficients,
                                    .num_rows = static_cast<int>(num_rows_),
                                    .num_tokens = 2 * num_slow,
                                    .head_dim = kPolynomials,
                                    .p_stride = 2 * num_slow,
                                    .v_stride = kPolynomials,
                                    .out_stride = num_columns});
}

void MeanTerm::turn_to(std::int32_t start) noexcept {
  if (start_ != kNoStart && start == start_ + kRopeTile) {
    const double* const step_cos = basis_->step_cos();
    const double* const step_sin = basis_->step_sin();
    for (int i = 0; i < basis_->num_pairs(); ++i) {
      const double cosine = cosines_[i], sine = sines_[i];
      cosines_[i] = cosine * step_cos[i] - sine * step_sin[i];
      sines_[i] = sine * step_cos[i] + cosine * step_sin[i];
    }
  } else if (start != start_) {
    // Unit vectors turned by the position. Turning back divides by the magnitude.
    const RopeSpec& spec = codec_.rope()->spec();
    std::array<float, kMaxHeadDim> unit{};
    for (int f = 0; f < spec.num_pairs(); ++f) unit[spec.first(f)] = 1.0f;
    codec_.rope()->rotate(unit.data(), start);
    const double undo = start < 0 ? spec.magnitude : 1.0 / spec.magnitude;
    for (int i = 0; i < basis_->num_pairs(); ++i) {
      const int num_fast = basis_->num_fast();
      const int f = i < num_fast ? basis_->fast_pair(i) : basis_->slow_pair(i - num_fast);
      cosines_[i] = unit[spec.first(f)] * undo;
      sines_[i] = unit[spec.second(f)] * undo;
    }
  }
  start_ = start;
}

void MeanTerm::add_tile(std::int32_t start, float* logits) noexcept {
  turn_to(start);
  fold_fast_pairs();
  project_slow_pairs();
  codec_.kernels().accumulate_tile({.p = scratch_.mean_folded,
                                    .v = basis_->columns(),
                                    .out = logits,
                                    .num_rows = static_cast<int>(num_rows_),
                                    .num_tokens = basis_->num_columns(),
                                    .head_dim = kRopeTile,
                                    .p_stride = basis_->num_columns(),
                                    .v_stride = kRopeTile,
                                    .out_stride = kPageSize});
}

void MeanTerm::add(const std::int32_t* positions, int num_cells, std::uint64_t seen, float* logits,
                   float* tile_logits) noexcept {
  add_constant(logits);
  if (basis_ == nullptr) return;
  const int first_seen = std::countr_zero(seen);
  if (const std::int32_t start = positions[first_seen] - first_seen;
      follows(positions, num_cells, seen, start)) {
    return add_tile(start, logits);
  }
  // Cells out of order: tile by tile of positions, each cell takes its own from it.
  while (seen != 0) {
    std::int32_t start = std::numeric_limits<std::int32_t>::max();
    for (int t = 0; t < num_cells; ++t) {
      if ((seen >> t & 1) != 0) start = std::min(start, positions[t]);
    }
    std::fill_n(tile_logits, num_rows_ * kPageSize, 0.0f);
    add_tile(start, tile_logits);
    for (int t = 0; t < num_cells; ++t) {
      if ((seen >> t & 1) == 0 || positions[t] >= std::int64_t{start} + kRopeTile) continue;
      seen &= ~(std::uint64_t{1} << t);
      for (std::int64_t row = 0; row < num_rows_; ++row) {
        logits[row * kPageSize + t] += tile_logits[row * kPageSize + positions[t] - start];
      }
    }
  }
}

}  // namespace oscar::attention

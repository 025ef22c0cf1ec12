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
    scratch.mean_constants[row] = static_cast<float>(sum);
  }
}

// A, B of every pair about the middle of the tile at position 0.
void MeanTerm::load_pairs(const float* mean) noexcept {
  const RopeTable& rope = *codec_.rope();
  const int dim = codec_.k_layout().head_dim;
  std::array<float, kMaxHeadDim> folded;
  for (std::int64_t row = 0; row < num_rows_; ++row) {
    scratch_.mean_constants[row] =
        rope.fold(scratch_.q_raw + row * dim, mean, dim, 0, folded.data());
    float* const pairs = scratch_.mean_pairs + row * kernels::kMeanPairFloats;
    std::fill_n(pairs, kernels::kMeanPairFloats, 0.0f);
    for (int place = 0; place < basis_->num_places(); ++place) {
      const int f = basis_->pair(place);
      if (f < 0) continue;
      const double a = folded[2 * f], b = folded[2 * f + 1];
      const double cosine = basis_->middle_cos(place), sine = basis_->middle_sin(place);
      pairs[2 * place] = static_cast<float>(a * cosine + b * sine);
      pairs[2 * place + 1] = static_cast<float>(b * cosine - a * sine);
    }
  }
}

void MeanTerm::add_constant(float* logits) const noexcept {
  for (std::int64_t row = 0; row < num_rows_; ++row) {
    const float constant = scratch_.mean_constants[row];
    for (int t = 0; t < kPageSize; ++t) logits[row * kPageSize + t] += constant;
  }
}

const float* MeanTerm::step_to(std::int32_t start) noexcept {
  if (start == start_) return nullptr;
  if (start_ != kNoStart && start == start_ + kRopeTile && steps_ < kStepsInFloat) {
    ++steps_;
    start_ = start;
    return basis_->step_turn();
  }
  // Unit vectors turned by the position. Turning back divides by the magnitude.
  const RopeSpec& spec = codec_.rope()->spec();
  std::array<float, kMaxHeadDim> unit{};
  for (int f = 0; f < spec.num_pairs(); ++f) unit[spec.first(f)] = 1.0f;
  codec_.rope()->rotate(unit.data(), start);
  const double undo = start < 0 ? spec.magnitude : 1.0 / spec.magnitude;
  float* const cosines = scratch_.mean_turn;
  float* const sines = scratch_.mean_turn + kernels::kMeanPairFloats;
  std::fill_n(scratch_.mean_turn, 2 * kernels::kMeanPairFloats, 0.0f);
  for (int place = 0; place < basis_->num_places(); ++place) {
    const int f = basis_->pair(place);
    if (f < 0) continue;
    cosines[2 * place] = cosines[2 * place + 1] = static_cast<float>(unit[spec.first(f)] * undo);
    sines[2 * place] = static_cast<float>(unit[spec.second(f)] * undo);
    sines[2 * place + 1] = -sines[2 * place];
  }
  start_ = start;
  steps_ = 0;
  return nullptr;
}

void MeanTerm::add_tile(std::int32_t start, float* logits) noexcept {
  const float* const step = step_to(start);
  codec_.kernels().mean_tile({.pairs = scratch_.mean_pairs,
                              .constants = scratch_.mean_constants,
                              .turn = scratch_.mean_turn,
                              .step = step,
                              .series = basis_->series(),
                              .columns = basis_->columns(),
                              .logits = logits,
                              .num_rows = static_cast<int>(num_rows_),
                              .num_fast = basis_->num_fast(),
                              .num_blocks = basis_->num_blocks().data(),
                              .logits_stride = kPageSize});
}

void MeanTerm::add(const std::int32_t* positions, int num_cells, std::uint64_t seen, float* logits,
                   float* tile_logits) noexcept {
  if (basis_ == nullptr) return add_constant(logits);
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

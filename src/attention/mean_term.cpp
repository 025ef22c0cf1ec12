#include "attention/mean_term.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace oscar::attention {
namespace {

// The pairs left out move no logit by more than this together, so no weight by more than 1e-5 of
// itself: a hundredth of the error bound of the whole.
constexpr float kDroppedLogit = 1e-5f;
// dot_tile works on whole multiples of kHeadDimMultiple channels, two a pair.
constexpr int kPairMultiple = kHeadDimMultiple / 2;

}  // namespace

MeanTerm::MeanTerm(const cache::LayerCodec& codec, int kv_head, std::int64_t num_rows,
                   const Scratch& scratch) noexcept
    : codec_(codec), scratch_(scratch), num_rows_(num_rows) {
  const float* const mean = codec.key_mean(kv_head);
  if (mean == nullptr) return;
  active_ = true;
  const int dim = codec.k_layout().head_dim;
  rope_ = codec.rope();
  if (rope_ == nullptr) {
    for (std::int64_t row = 0; row < num_rows; ++row) {
      double sum = 0;
      for (int d = 0; d < dim; ++d) sum += double{scratch.q_raw[row * dim + d]} * mean[d];
      scratch.mean_constant[row] = static_cast<float>(sum);
    }
    return;
  }
  // mean_folded holds the coefficients of all pairs until the kept ones are picked from it.
  const int num_pairs = rope_->spec().num_pairs();
  for (std::int64_t row = 0; row < num_rows; ++row) {
    scratch.mean_constant[row] = rope_->fold(scratch.q_raw + row * dim, mean, dim, 0,
                                             scratch.mean_folded + row * 2 * num_pairs);
  }
  choose_pairs(scratch.mean_folded, num_pairs);
  for (std::int64_t row = 0; row < num_rows; ++row) {
    for (int k = 0; k < num_kept_; ++k) {
      const float* const pair = scratch.mean_folded + (row * num_pairs + std::max(kept_[k], 0)) * 2;
      scratch.mean_pairs[(row * num_kept_ + k) * 2] = kept_[k] < 0 ? 0.0f : pair[0];
      scratch.mean_pairs[(row * num_kept_ + k) * 2 + 1] = kept_[k] < 0 ? 0.0f : pair[1];
    }
  }
  for (int i = 0; i < kRopeTile; ++i) {
    for (int k = 0; k < num_kept_; ++k) {
      const float* const entry = rope_->tile() + (i * num_pairs + std::max(kept_[k], 0)) * 2;
      scratch.mean_tile[(i * num_kept_ + k) * 2] = kept_[k] < 0 ? 0.0f : entry[0];
      scratch.mean_tile[(i * num_kept_ + k) * 2 + 1] = kept_[k] < 0 ? 0.0f : entry[1];
    }
  }
}

void MeanTerm::choose_pairs(const float* base, int num_pairs) noexcept {
  std::array<float, kMaxHeadDim / 2> reach{};  // the most a pair adds to any logit of the block
  for (std::int64_t row = 0; row < num_rows_; ++row) {
    for (int f = 0; f < num_pairs; ++f) {
      const float* const pair = base + (row * num_pairs + f) * 2;
      reach[f] = std::max(reach[f], std::hypot(pair[0], pair[1]));
    }
  }
  std::array<int, kMaxHeadDim / 2> order;
  for (int f = 0; f < num_pairs; ++f) order[f] = f;
  std::sort(order.begin(), order.begin() + num_pairs,
            [&](int a, int b) { return reach[a] != reach[b] ? reach[a] < reach[b] : a < b; });
  int dropped = 0;
  float total = 0;
  while (dropped < num_pairs && total + reach[order[dropped]] <= kDroppedLogit)
    total += reach[order[dropped++]];
  std::sort(order.begin() + dropped, order.begin() + num_pairs);
  num_kept_ = num_pairs - dropped;
  std::copy(order.begin() + dropped, order.begin() + num_pairs, kept_);
  while (num_kept_ % kPairMultiple != 0) kept_[num_kept_++] = -1;
}

void MeanTerm::add_run(std::int32_t start, int first_cell, int num_cells,
                       float* logits) const noexcept {
  // cos and sin of w_f·start: a unit vector turned by it.
  std::array<float, kMaxHeadDim> unit{};
  const RopeSpec& spec = rope_->spec();
  for (int f = 0; f < spec.num_pairs(); ++f) unit[spec.first(f)] = 1.0f;
  rope_->rotate(unit.data(), start);
  std::array<float, kMaxHeadDim / 2 + kPairMultiple> cosine{}, sine{};
  for (int k = 0; k < num_kept_; ++k) {
    if (kept_[k] < 0) continue;
    cosine[k] = unit[spec.first(kept_[k])] / spec.magnitude;
    sine[k] = unit[spec.second(kept_[k])] / spec.magnitude;
  }
  for (std::int64_t row = 0; row < num_rows_; ++row) {
    const float* const base = scratch_.mean_pairs + row * num_kept_ * 2;
    float* const folded = scratch_.mean_folded + row * num_kept_ * 2;
    for (int k = 0; k < num_kept_; ++k) {
      folded[2 * k] = base[2 * k] * cosine[k] + base[2 * k + 1] * sine[k];
      folded[2 * k + 1] = base[2 * k + 1] * cosine[k] - base[2 * k] * sine[k];
    }
  }
  codec_.kernels().dot_tile({.q = scratch_.mean_folded,
                             .k = scratch_.mean_tile,
                             .logits = logits + first_cell,
                             .num_rows = static_cast<int>(num_rows_),
                             .num_tokens = num_cells,
                             .head_dim = 2 * num_kept_,
                             .q_stride = 2 * num_kept_,
                             .k_stride = 2 * num_kept_,
                             .logits_stride = kPageSize,
                             .accumulate = true});
}

void MeanTerm::add(const std::int32_t* positions, int num_cells, std::uint64_t seen,
                   float* logits) const noexcept {
  for (std::int64_t row = 0; row < num_rows_; ++row) {
    const float constant = scratch_.mean_constant[row];
    float* const row_logits = logits + row * kPageSize;
    for (int t = 0; t < num_cells; ++t) row_logits[t] += constant;
  }
  if (rope_ == nullptr || num_kept_ == 0) return;
  int first = 0;
  while (first < num_cells) {
    int last = first + 1;
    while (last < num_cells && positions[last] == positions[first] + (last - first)) ++last;
    const std::uint64_t run = low_bits(last) & ~low_bits(first);
    if (positions[first] >= 0 && (run & seen) != 0)
      add_run(positions[first], first, last - first, logits);
    first = last;
  }
}

}  // namespace oscar::attention

// One online-softmax step for each row. Included after one ISA header of simd/.
#pragma once

#include "kernels/exp.h"
#include "kernels/tile_panel.h"

namespace oscar::kernels {
namespace {

constexpr float kMaskedLogit = -__builtin_inff();

// The largest of a row by lanes.
[[gnu::always_inline]] inline simd::F largest_of_row(const float* logits, int num_tokens) {
  const int whole = num_tokens / simd::kWidth * simd::kWidth, left = num_tokens - whole;
  simd::F largest = simd::broadcast(kMaskedLogit);
  if (left > 0) largest = simd::load_partial(logits + whole, left, kMaskedLogit);
  for (int t = 0; t < whole; t += simd::kWidth) {
    largest = simd::max(largest, simd::load(logits + t));
  }
  return largest;
}

// Logits to weights e^(logit − max); their sum by lanes.
[[gnu::always_inline]] inline simd::F weigh_row(float* logits, int num_tokens, float max) {
  const int whole = num_tokens / simd::kWidth * simd::kWidth, left = num_tokens - whole;
  const simd::F offset = simd::broadcast(max);
  simd::F total{};
  if (left > 0) {
    total = exp_nonpositive(simd::load_partial(logits + whole, left, kMaskedLogit) - offset);
    simd::store_partial(logits + whole, total, left);
  }
  for (int t = 0; t < whole; t += simd::kWidth) {
    const simd::F weights = exp_nonpositive(simd::load(logits + t) - offset);
    simd::store(logits + t, weights);
    total += weights;
  }
  return total;
}

// Every row goes through a part before the next part: a row alone would wait for its reductions.
template <int num_rows>
[[gnu::always_inline]] inline void softmax_rows(const SoftmaxTileParams& params, int row,
                                                int num_tokens) {
  float* const logits = params.logits + row * params.logits_stride;
  float* const max = params.max + row;
  simd::F largest[num_rows], total[num_rows];
  for (int r = 0; r < num_rows; ++r) {
    largest[r] = largest_of_row(logits + r * params.logits_stride, num_tokens);
  }
  float new_max[num_rows];
  for (int r = 0; r < num_rows; ++r) {
    const float of_tile = simd::reduce_max(largest[r]);
    new_max[r] = of_tile > max[r] ? of_tile : max[r];
  }
  for (int r = 0; r < num_rows; ++r) {
    // Nothing attended yet: any finite number takes −inf to the weight 0.
    total[r] = weigh_row(logits + r * params.logits_stride, num_tokens,
                         new_max[r] == kMaskedLogit ? 0.0f : new_max[r]);
  }
  for (int r = 0; r < num_rows; ++r) {
    const float rescale =
        max[r] == new_max[r] ? 1.0f : exp_nonpositive(simd::broadcast(max[r] - new_max[r]))[0];
    params.rescale[row + r] = rescale;
    params.sum[row + r] = params.sum[row + r] * rescale + simd::reduce_add(total[r]);
    max[r] = new_max[r];
  }
}

inline void softmax_tile_generic(const SoftmaxTileParams& params) {
  for_each_row_block<simd::kByteRows>(params.num_rows, [&]<int num_rows>(int row) {
    // Most tiles are whole: their loops have a constant length.
    if (params.num_tokens == kPageSize) {
      softmax_rows<num_rows>(params, row, kPageSize);
    } else {
      softmax_rows<num_rows>(params, row, params.num_tokens);
    }
  });
}

}  // namespace
}  // namespace oscar::kernels

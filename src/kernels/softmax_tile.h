// One online-softmax step for each row. Included after one ISA header of simd/.
#pragma once

#include "kernels/exp.h"
#include "kernels/kernels.h"

namespace oscar::kernels {
namespace {

inline void softmax_row(float* logits, int num_tokens, float* max, float* sum, float* rescale) {
  constexpr float kMasked = -__builtin_inff();
  const int whole = num_tokens / simd::kWidth * simd::kWidth, left = num_tokens - whole;
  simd::F largest = simd::broadcast(kMasked);
  if (left > 0) largest = simd::load_partial(logits + whole, left, kMasked);
  for (int t = 0; t < whole; t += simd::kWidth) {
    largest = simd::max(largest, simd::load(logits + t));
  }
  const float tile_max = simd::reduce_max(largest);
  const float new_max = tile_max > *max ? tile_max : *max;
  if (new_max == kMasked) {
    for (int t = 0; t < num_tokens; ++t) logits[t] = 0.0f;
    *rescale = 1.0f;
    return;
  }
  const simd::F offset = simd::broadcast(new_max);
  simd::F total{};
  if (left > 0) {
    total = exp_nonpositive(simd::load_partial(logits + whole, left, kMasked) - offset);
    simd::store_partial(logits + whole, total, left);
  }
  for (int t = 0; t < whole; t += simd::kWidth) {
    const simd::F weights = exp_nonpositive(simd::load(logits + t) - offset);
    simd::store(logits + t, weights);
    total += weights;
  }
  *rescale = *max == new_max ? 1.0f : exp_nonpositive(simd::broadcast(*max - new_max))[0];
  *sum = *sum * *rescale + simd::reduce_add(total);
  *max = new_max;
}

inline void softmax_tile_generic(const SoftmaxTileParams& params) {
  for (int r = 0; r < params.num_rows; ++r) {
    softmax_row(params.logits + r * params.logits_stride, params.num_tokens, params.max + r,
                params.sum + r, params.rescale + r);
  }
}

}  // namespace
}  // namespace oscar::kernels

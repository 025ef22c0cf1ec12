#include <cmath>
#include <limits>

#include "attention/attention.h"

namespace oscar::attention {

void merge(float* out_a, float* lse_a, const float* out_b, float lse_b, int head_dim_v) noexcept {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  if (lse_b == kNothing) return;
  if (*lse_a == kNothing) {
    for (int d = 0; d < head_dim_v; ++d) out_a[d] = out_b[d];
    *lse_a = lse_b;
    return;
  }
  const float max = std::fmax(*lse_a, lse_b);
  const float weight_a = std::exp(*lse_a - max), weight_b = std::exp(lse_b - max);
  const float sum = weight_a + weight_b;
  for (int d = 0; d < head_dim_v; ++d) {
    out_a[d] = (weight_a * out_a[d] + weight_b * out_b[d]) / sum;
  }
  *lse_a = max + std::log(sum);
}

}  // namespace oscar::attention

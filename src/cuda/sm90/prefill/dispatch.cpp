// From a shape to its kernel.
#include "cuda/attend.h"

namespace oscar::cuda::sm90 {

template <int kHeadDim, int kKeyBits, int kValueBits>
AttendFunction prefill_function_of_shape(bool has_mean) noexcept;

AttendFunction prefill_function(int head_dim, int key_bits, int value_bits,
                                bool has_mean) noexcept {
#define OSCAR_HOPPER_PREFILL(d, k, v)                    \
  if (head_dim == d && key_bits == k && value_bits == v) \
    return prefill_function_of_shape<d, k, v>(has_mean);
#include "cuda/sm90/prefill/kernels.inc"
  return {};
}

}  // namespace oscar::cuda::sm90

// From a shape to its kernel.
#include "cuda/attend.h"

namespace oscar::cuda::sm90 {

template <int kHeadDim, int kKeyBits, int kValueBits>
AttendFunction prefill_function_of_shape(bool has_mean) noexcept;

template <int kHeadDim>
AttendFunction prefill_function_of_trellis(bool has_mean) noexcept;

AttendFunction prefill_trellis_function(int head_dim, bool has_mean) noexcept {
#define OSCAR_HOPPER_PREFILL_TRELLIS(d) \
  if (head_dim == d) return prefill_function_of_trellis<d>(has_mean);
#include "cuda/sm90/prefill/kernels_trellis.inc"
  return {};
}

AttendFunction prefill_function(int head_dim, int key_bits, int value_bits,
                                bool has_mean) noexcept {
#define OSCAR_HOPPER_PREFILL(d, k, v)                    \
  if (head_dim == d && key_bits == k && value_bits == v) \
    return prefill_function_of_shape<d, k, v>(has_mean);
#include "cuda/sm90/prefill/kernels.inc"
  return {};
}

}  // namespace oscar::cuda::sm90

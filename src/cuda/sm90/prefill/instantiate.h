// One shape of kernels.inc: the file that includes this defines OSCAR_PREFILL_SHAPE as head_dim,
// key_bits, value_bits.
#pragma once

#include "cuda/attend.h"
#include "cuda/sm90/prefill/kernel.cuh"

namespace oscar::cuda::sm90 {

template <int kHeadDim, int kKeyBits, int kValueBits>
AttendFunction prefill_function_of_shape() noexcept {
  using C = PrefillConfig<kHeadDim, kKeyBits, kValueBits>;
  return {prefill_kernel<C>, C::kThreads, C::kSharedBytes};
}

template AttendFunction prefill_function_of_shape<OSCAR_PREFILL_SHAPE>() noexcept;

}  // namespace oscar::cuda::sm90

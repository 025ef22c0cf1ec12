// One shape of kernels.inc: the file that includes this defines OSCAR_PREFILL_SHAPE as head_dim,
// key_bits, value_bits.
#pragma once

#include "cuda/attend.h"
#include "cuda/sm90/prefill/kernel.cuh"

namespace oscar::cuda::sm90 {

template <class C>
AttendFunction function_of() noexcept {
  return {prefill_kernel<C>, C::kThreads, C::kSharedBytes};
}

template <int kHeadDim, int kKeyBits, int kValueBits>
AttendFunction prefill_function_of_shape(bool has_mean) noexcept {
  return has_mean ? function_of<PrefillConfig<kHeadDim, kKeyBits, kValueBits, true>>()
                  : function_of<PrefillConfig<kHeadDim, kKeyBits, kValueBits, false>>();
}

template AttendFunction prefill_function_of_shape<OSCAR_PREFILL_SHAPE>(bool) noexcept;

}  // namespace oscar::cuda::sm90

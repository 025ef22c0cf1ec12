// One shape of kernels.inc: the file that includes this defines OSCAR_PREFILL_SHAPE as head_dim,
// key_bits, value_bits; of kernels_trellis.inc OSCAR_PREFILL_TRELLIS as head_dim.
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

template <int kHeadDim>
AttendFunction prefill_function_of_trellis(bool has_mean) noexcept {
  return has_mean ? function_of<PrefillConfig<kHeadDim, 2, 2, true, true>>()
                  : function_of<PrefillConfig<kHeadDim, 2, 2, false, true>>();
}

#ifdef OSCAR_PREFILL_TRELLIS
template AttendFunction prefill_function_of_trellis<OSCAR_PREFILL_TRELLIS>(bool) noexcept;
#else
template AttendFunction prefill_function_of_shape<OSCAR_PREFILL_SHAPE>(bool) noexcept;
#endif

}  // namespace oscar::cuda::sm90

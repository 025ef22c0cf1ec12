// One shape of kernels.inc: the file that includes this defines OSCAR_DECODE_SHAPE as head_dim,
// key_bits, value_bits; of kernels_mean.inc with OSCAR_DECODE_MEAN as true; of kernels_trellis.inc
// OSCAR_DECODE_TRELLIS as head_dim, mean.
#pragma once

#ifndef OSCAR_DECODE_MEAN
#define OSCAR_DECODE_MEAN false
#endif

#include "cuda/attend.h"
#include "cuda/sm90/decode/kernel.cuh"

namespace oscar::cuda::sm90 {

template <class C>
AttendFunction function_of(int num_seqs) {
  static_assert(C::shared_bytes(1024) <= 227 * 1024);
  return {decode_kernel<C>, C::kThreads, C::shared_bytes(num_seqs), C::kTransformsOut};
}

template <int kHeadDim, int kKeyBits, int kValueBits, bool kMean>
AttendFunction decode_function_of_shape(bool affine, int head_tiles, int num_seqs) noexcept {
  if (affine) {
    return head_tiles == 1
               ? function_of<DecodeConfig<kHeadDim, kKeyBits, kValueBits, true, 1, kMean>>(num_seqs)
               : function_of<DecodeConfig<kHeadDim, kKeyBits, kValueBits, true, 2, kMean>>(
                     num_seqs);
  }
  return head_tiles == 1
             ? function_of<DecodeConfig<kHeadDim, kKeyBits, kValueBits, false, 1, kMean>>(num_seqs)
             : function_of<DecodeConfig<kHeadDim, kKeyBits, kValueBits, false, 2, kMean>>(num_seqs);
}

template <int kHeadDim, bool kMean>
AttendFunction decode_function_of_trellis(int head_tiles, int num_seqs) noexcept {
  return head_tiles == 1
             ? function_of<DecodeConfig<kHeadDim, 2, 2, false, 1, kMean, true>>(num_seqs)
             : function_of<DecodeConfig<kHeadDim, 2, 2, false, 2, kMean, true>>(num_seqs);
}

#ifdef OSCAR_DECODE_TRELLIS
template AttendFunction decode_function_of_trellis<OSCAR_DECODE_TRELLIS>(int, int) noexcept;
#else
template AttendFunction decode_function_of_shape<OSCAR_DECODE_SHAPE, OSCAR_DECODE_MEAN>(
    bool, int, int) noexcept;
#endif

}  // namespace oscar::cuda::sm90

// Head sizes up to OSCAR_ATTEND_MAX_DIM, decode and prefill.
#pragma once

#include "cuda/attend.h"
#include "cuda/sm80/attend/kernel.cuh"

namespace oscar::cuda::sm80 {

template <int kMaxDim>
AttendFunction attend_function_of(int rows_per_block) noexcept {
  if (rows_per_block == kWarpRows) return {attend_kernel<kMaxDim, 16>, kThreads, 0};
  return {attend_kernel<kMaxDim, 64>, kThreads, 0};
}

template AttendFunction attend_function_of<OSCAR_ATTEND_MAX_DIM>(int) noexcept;

}  // namespace oscar::cuda::sm80

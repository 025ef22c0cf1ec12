// In place of the Hopper kernels, where they are not compiled (OSCAR_CUDA_ARCHITECTURES without
// 90).
#include "cuda/attend.h"
#include "cuda/sm90/encode/run_packed.h"

namespace oscar::cuda::sm90 {

bool has_code() noexcept { return false; }

AttendFunction decode_function(int, int, int, bool, int, int, bool) noexcept { return {}; }

AttendFunction prefill_function(int, int, int, bool) noexcept { return {}; }

AttendFunction decode_trellis_function(int, int, int, bool) noexcept { return {}; }

AttendFunction prefill_trellis_function(int, bool) noexcept { return {}; }

cudaError_t run_packed(const EncodeParams&, int, bool, const encode::Card&, cudaStream_t) {
  return cudaErrorNoKernelImageForDevice;  // not called: has_code() is asked before
}

}  // namespace oscar::cuda::sm90

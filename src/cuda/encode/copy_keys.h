// Launch of the copies of keys as they came, for kernels of many tokens; those of few copy them
// themselves.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/encode_params.h"

namespace oscar::cuda::encode {

// Launches nothing where no keys are to be copied so.
cudaError_t run_copy_keys(const EncodeParams& params, cudaStream_t stream);

}  // namespace oscar::cuda::encode

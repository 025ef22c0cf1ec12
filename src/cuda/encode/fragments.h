// Launch of the fragment kernels; encode.cu chooses.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/encode_params.h"

namespace oscar::cuda::encode {

bool serves(const EncodeSide& side) noexcept;

// Sides without rows are left out; the others have the head size and agree on having an image.
cudaError_t run_fragments(const EncodeParams& params, int head_dim, bool has_transform, int num_sms,
                          cudaStream_t stream);

}  // namespace oscar::cuda::encode

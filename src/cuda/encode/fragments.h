// Launch of the fragment kernels; encode.cu chooses.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/encode_params.h"

namespace oscar::cuda::encode {

// Where the fragments of a side's rows come from.
enum class Source {
  kRotated,    // rows are rotated already
  kTransform,  // rows times the image
  kLessMean,   // rows less the mean, times the image
};

bool serves(const EncodeSide& side) noexcept;
Source source_of(const EncodeSide& side) noexcept;  // of a side that is served

// Sides without rows are left out; the others have the head size and the source.
cudaError_t run_fragments(const EncodeParams& params, int head_dim, Source source, int num_sms,
                          cudaStream_t stream);

}  // namespace oscar::cuda::encode

// Launch of the packed encoder with a transform on Hopper.
#pragma once

#include "cuda/encode/launch_many.h"

namespace oscar::cuda::sm90 {

// Whether this build has the Hopper kernels; without them the general ones serve Hopper too.
bool has_code() noexcept;

// Sides without rows are left out; the others have 2-bit codes, the head size (64 or 128) and an
// image, and a mean where has_mean says so.
cudaError_t run_packed(const EncodeParams& params, int head_dim, bool has_mean,
                       const encode::Card& card, cudaStream_t stream);

}  // namespace oscar::cuda::sm90

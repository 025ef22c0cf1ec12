// Encoding on CUDA: rows to pages and exact copies. Prefill and decode are the same kernel; a
// token's bytes depend on its row, its head and its position alone.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "cuda/encode_params.h"
#include "cuda/status.h"

namespace oscar::cuda {

// Checks pointers, shapes and strides. Empty: fine; else one sentence.
std::string check_params(const EncodeParams& params);

// One kernel on `stream`; allocates and synchronises nothing; may be captured in a graph.
Status run_encode(const EncodeParams& params, cudaStream_t stream) noexcept;

}  // namespace oscar::cuda

// Encoding on CUDA: rows to pages and exact copies. Prefill and decode are the same kernel; a
// token's bytes depend on its row, its head and its position alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "cuda/encode_params.h"
#include "cuda/status.h"

namespace oscar::cuda {

// Checks pointers, shapes and strides. Empty: fine; else one sentence.
std::string check_params(const EncodeParams& params);

// At most two kernels on `stream` (one, unless the sides need different ones); allocates and
// synchronises nothing; may be captured in a graph. Which: encode_kernel_name().
Status run_encode(const EncodeParams& params, cudaStream_t stream) noexcept;

// "fragments": rows of one group, head size 64 or 128, rotated already or with a transform image;
// "ordered": every other shape, the transform in the CPU's order of sums.
const char* encode_kernel_name(const EncodeSide& side) noexcept;

// EncodeSide::transform_image of matrices [num_kv_heads][head_dim][head_dim] on the device; once,
// when a model is loaded. Head sizes 64 and 128.
std::size_t transform_image_bytes(int num_kv_heads, int head_dim);
Status run_prepare_transform(const float* matrices, int num_kv_heads, int head_dim, void* image,
                             cudaStream_t stream) noexcept;

}  // namespace oscar::cuda

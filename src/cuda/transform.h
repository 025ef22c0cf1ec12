// Query rows into the keys' rotated basis before attention, and outputs back from the values' after
// it (unless the inverse is absorbed in the output projection): rows times a matrix a KV head, on
// tensor cores.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/bf16.h"
#include "cuda/status.h"

namespace oscar::cuda {

struct TransformRowsParams {
  const bf16_t* rows = nullptr;  // [num_tokens][num_kv_heads·heads_per_kv_head][head_dim]
  bf16_t* out = nullptr;         // the same shape; rows themselves, or apart from them
  std::int64_t token_stride = 0, out_token_stride = 0;  // in elements
  const void* image = nullptr;  // of a matrix a KV head: run_prepare_transform (encode.h)
  std::int64_t num_tokens = 0;
  std::int32_t num_kv_heads = 0, heads_per_kv_head = 1;
  std::int32_t head_dim = 0;  // 64 or 128
};

// One kernel on `stream`; allocates and synchronises nothing.
Status run_transform_rows(const TransformRowsParams& params, cudaStream_t stream) noexcept;

}  // namespace oscar::cuda

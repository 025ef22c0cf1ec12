// Codes of one sequence back to rows, in order: what a prefill reads that continues a prompt, and
// attends over as if it had never been coded.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/bf16.h"
#include "cuda/device_layout.h"
#include "cuda/status.h"

namespace oscar::cuda {

struct DequantizeSide {
  bf16_t* rows = nullptr;  // [num_tokens][num_kv_heads][head_dim] rotated, without the mean; null:
                           // this side is left out
  DevicePlane plane;
  std::int32_t plane_offset_bytes = 0;  // of this side in a head's run
};

struct DequantizeParams {
  DequantizeSide sides[2];              // keys, values
  const std::uint8_t* pages = nullptr;  // as AttendParams
  std::int64_t page_stride_bytes = 0, head_stride_bytes = 0;
  const std::int32_t* block_table = nullptr;  // [⌈(first_token + num_tokens)/64⌉] of the sequence
  std::int64_t first_token = 0, num_tokens = 0;
  std::int64_t token_stride = 0;  // of rows, in elements
  std::int32_t num_kv_heads = 0;
};

// One kernel on `stream`; allocates and synchronises nothing.
Status run_dequantize(const DequantizeParams& params, cudaStream_t stream) noexcept;

}  // namespace oscar::cuda

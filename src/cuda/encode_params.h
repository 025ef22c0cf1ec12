// What the encode kernel reads: one trivially copyable struct, shapes in comments.
//
// The row quantizer is the CPU's (kernels/kernels.h, EncodeParams), operation for operation: from
// the same rotated row the bytes are the same.
#pragma once

#include <cstdint>

#include "base/bf16.h"
#include "cuda/device_layout.h"
#include "format/quant_spec.h"

namespace oscar::cuda {

// Keys or values of a run of tokens.
struct EncodeSide {
  const bf16_t* rows = nullptr;  // [num_tokens][num_kv_heads][head_dim] raw, keys after RoPE; null:
                                 // this side is not encoded
  std::int64_t token_stride = 0, head_stride = 0;  // in elements
  const float* transform = nullptr;  // [num_kv_heads][head_dim][head_dim] rotated = raw·transform;
                                     // null: rows are rotated already
  // The tensor-core transform: transform_image_bytes() written by run_prepare_transform, 16-byte
  // aligned, instead of `transform`. Another order of sums: at most one code in a thousand differs
  // from the ordered transform's, by one. Head sizes 64 and 128, one group.
  const void* transform_image = nullptr;
  const float* mean = nullptr;  // [num_kv_heads][head_dim] raw basis (keys: before RoPE), or null;
                                // with a transform image 16-byte aligned, as the RoPE tables
  const float* clip_ratio = nullptr;  // [num_kv_heads] in (0, 1]
  DevicePlane plane;
  std::int32_t plane_offset_bytes = 0;  // of this side in a head's run
  ScaleFit scale_fit = ScaleFit::kPlain;
};

struct EncodeParams {
  EncodeSide sides[2];  // keys, values
  std::int64_t num_tokens = 0;
  std::int32_t num_kv_heads = 0;

  std::uint8_t* pages = nullptr;  // [num_pages][num_kv_heads] runs, as AttendParams
  std::int64_t page_stride_bytes = 0, head_stride_bytes = 0;
  const std::int64_t* slots = nullptr;  // [num_tokens] page·64 + offset, −1: skip the token

  // RoPE of the key mean; tables as in MeanTerm. num_pairs 0: the mean is static.
  const std::int32_t* positions = nullptr;  // [num_tokens]
  const float* rope_tile = nullptr;
  const float* rope_start = nullptr;
  std::int32_t num_pairs = 0;
  bool interleaved = false;  // channel 2f pairs with 2f + 1, else f with f + num_pairs

  // Exact copies (ExactCopies): rotated rows as BF16, mean included; of keys as they came where
  // raw_key_copies is set, since rotation spreads the rounding of a large mean over all channels.
  bf16_t* copies = nullptr;  // [blocks][num_kv_heads][2][rows_per_block][head_dim], or null
  const std::int64_t* copy_slots = nullptr;  // [num_tokens] block·rows_per_block + row, −1: none
  std::int32_t rows_per_block = 0;
  bool raw_key_copies = false;

  std::int32_t* non_finite =
      nullptr;  // [1] set to 1 when a row held NaN or Inf (stored as zeros); or null
};

}  // namespace oscar::cuda

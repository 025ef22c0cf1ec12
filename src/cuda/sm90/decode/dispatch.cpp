// From a shape to its kernel.
#include "cuda/attend.h"

namespace oscar::cuda::sm90 {

template <int kHeadDim, int kKeyBits, int kValueBits, bool kMean>
AttendFunction decode_function_of_shape(bool affine, int head_tiles, int num_seqs) noexcept;

template <int kHeadDim, bool kMean>
AttendFunction decode_function_of_trellis(int head_tiles, int num_seqs) noexcept;

AttendFunction decode_trellis_function(int head_dim, int head_tiles, int num_seqs,
                                       bool has_mean) noexcept {
#define OSCAR_HOPPER_DECODE_TRELLIS(d, mean)                          \
  if (head_dim == d && has_mean == mean) {                            \
    return decode_function_of_trellis<d, mean>(head_tiles, num_seqs); \
  }
#include "cuda/sm90/decode/kernels_trellis.inc"
  return {};
}

AttendFunction decode_function(int head_dim, int key_bits, int value_bits, bool affine,
                               int head_tiles, int num_seqs, bool has_mean) noexcept {
#define OSCAR_HOPPER_DECODE_MEAN(d, k, v)                                         \
  if (has_mean && head_dim == d && key_bits == k && value_bits == v) {            \
    return decode_function_of_shape<d, k, v, true>(affine, head_tiles, num_seqs); \
  }
#include "cuda/sm90/decode/kernels_mean.inc"
  if (has_mean) return {};
#define OSCAR_HOPPER_DECODE(d, k, v)                                               \
  if (head_dim == d && key_bits == k && value_bits == v) {                         \
    return decode_function_of_shape<d, k, v, false>(affine, head_tiles, num_seqs); \
  }
#include "cuda/sm90/decode/kernels.inc"
  return {};
}

}  // namespace oscar::cuda::sm90

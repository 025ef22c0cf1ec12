// From a shape to its kernel.
#include "cuda/attend.h"
#include "cuda/sm80/attend/config.h"

namespace oscar::cuda::sm80 {

template <int kMaxDim>
AttendFunction attend_function_of(int rows_per_block) noexcept;

AttendFunction attend_function(int head_dim, int rows_per_block, int num_groups,
                               bool has_mean) noexcept {
  AttendFunction function = head_dim <= 64    ? attend_function_of<64>(rows_per_block)
                            : head_dim <= 128 ? attend_function_of<128>(rows_per_block)
                                              : attend_function_of<256>(rows_per_block);
  function.shared_bytes = shared_bytes(head_dim, rows_per_block, num_groups, has_mean);
  return function;
}

}  // namespace oscar::cuda::sm80

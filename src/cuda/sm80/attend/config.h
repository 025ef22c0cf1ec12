// Shared memory of the generic kernel, known to the plan.
#pragma once

namespace oscar::cuda::sm80 {

inline constexpr int kWarps = 4, kThreads = 32 * kWarps;
inline constexpr int kWarpRows = 16;

// Key and value tiles of a page, query rows (all BF16, padded by 16 bytes), scale and zero point of
// every group and token, query sums of every row and group, mean coefficients of every row.
constexpr int shared_bytes(int head_dim, int rows, int num_groups, bool has_mean) {
  return (2 * 64 + rows) * (2 * head_dim + 16) + 2 * num_groups * 64 * 4 + rows * num_groups * 4 +
         (has_mean ? rows * head_dim * 4 : 0);
}

// Floats of one block's partial results: one set of 16 rows a warp.
constexpr int partial_floats(int head_dim) { return kWarps * kWarpRows * (head_dim + 2); }

}  // namespace oscar::cuda::sm80

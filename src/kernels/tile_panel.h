// Register-blocked product with a panel: sums[r][v] += Σ_i a[r][i]·panel[i][v], the inner loop of
// both tile kernels. Included after one ISA header of simd/.
#pragma once

#include "kernels/kernels.h"

namespace oscar::kernels {
namespace {

// a: [num_rows][depth], row stride a_stride; panel: [depth][num_vectors vectors], row stride
// panel_stride.
template <int num_rows, int num_vectors>
inline void multiply_panel(const float* a, std::int64_t a_stride, const float* panel,
                           std::int64_t panel_stride, int depth,
                           simd::F (&sums)[num_rows][num_vectors]) {
  for (int i = 0; i < depth; ++i) {
    simd::F columns[num_vectors];
#pragma GCC unroll 8
    for (int v = 0; v < num_vectors; ++v) {
      columns[v] = simd::load(panel + i * panel_stride + v * simd::kWidth);
    }
#pragma GCC unroll 16
    for (int r = 0; r < num_rows; ++r) {
      const simd::F factor = simd::load_broadcast(a + r * a_stride + i);
#pragma GCC unroll 8
      for (int v = 0; v < num_vectors; ++v) {
        sums[r][v] = simd::fma(factor, columns[v], sums[r][v]);
      }
    }
  }
}

template <int num_rows, typename Block>
inline void call_with_rows(int size, int first_row, const Block& block) {
  if (size == num_rows) return block.template operator()<num_rows>(first_row);
  if constexpr (num_rows > 1) call_with_rows<num_rows - 1>(size, first_row, block);
}

// Calls block.template operator()<n>(first_row) for even blocks of n ≤ max_rows rows that cover [0,
// num_rows).
template <int max_rows, typename Block>
inline void for_each_row_block(int num_rows, const Block& block) {
  const int num_blocks = (num_rows + max_rows - 1) / max_rows;
  for (int i = 0, row = 0; i < num_blocks; ++i) {
    const int left = num_rows - row;
    const int size = (left + num_blocks - i - 1) / (num_blocks - i);
    call_with_rows<max_rows>(size, row, block);
    row += size;
  }
}

}  // namespace
}  // namespace oscar::kernels

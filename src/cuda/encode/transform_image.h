// The matrices of the tensor-core transform, as operand fragments.
//
// A row times a matrix is rows of BF16 times one or two BF16 parts of the matrix times a unit: the
// unit is the common magnitude of a Hadamard matrix's entries (its signs are exact in one part) and
// 1 else; the second part is what BF16 leaves of the entries, 2^−17 of them remaining.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device_layout.h"

namespace oscar::cuda {

inline constexpr int kTransformParts = 2;

// Head of one KV head's image; the parts follow, [part][k step of 16][pair of column tiles][lane]
// of 16 bytes.
struct TransformHead {
  float unit;
  std::int32_t num_parts;  // 1 or 2
  std::int32_t reserved[2];
};

OSCAR_HD std::size_t transform_part_bytes(int head_dim) {
  return std::size_t(head_dim) * std::size_t(head_dim) * 2;
}
OSCAR_HD std::size_t transform_head_bytes(int head_dim) {
  return sizeof(TransformHead) + kTransformParts * transform_part_bytes(head_dim);
}

// Channel of element i (0..1) of operand register r (0..1) of lane quarter t in k step.
OSCAR_HD int transform_channel(int step, int t, int r, int i) {
  return 16 * step + 8 * r + 2 * t + i;
}

}  // namespace oscar::cuda

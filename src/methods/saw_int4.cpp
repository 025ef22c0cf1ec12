// SAW-INT4 (2604.19157): a block-diagonal Hadamard of order up to 128 on the keys, 4 bits.
#include <algorithm>
#include <bit>

#include "methods/definition.h"
#include "methods/hadamard.h"

namespace oscar::methods {
namespace {

constexpr int kMaxOrder = 128;

std::vector<float> largest_blocks(int head_dim) {
  const int power = 1 << std::countr_zero(static_cast<unsigned>(head_dim));
  return block_hadamard(head_dim, std::min(power, kMaxOrder));
}

}  // namespace

const Definition kSawInt4 = {
    .summary = "block-diagonal Hadamard on keys, 4 bits, per token",
    .k = {.bits = 4, .group_size = kMaxHeadDim},
    .v = {.bits = 4, .group_size = kMaxHeadDim},
    .k_rotation = largest_blocks,
    .hadamard = true,
};

}  // namespace oscar::methods

// Trellis codes of a word (format/trellis.h) to levels in half bytes: what the operands of matrix
// instructions are masked out of. docs/adr/0017-cuda-trellis.md counts the operations.
//
// level_t = 2·y_t + u_{t−1}, where y_t = 2·a_t + (u_t ⊕ u_{t−2}) lies where the code does. Channel
// t is in byte t / 4 of the word.
#pragma once

#include <cstdint>

#include "cuda/ptx/scalar.h"

namespace oscar::cuda {

// Bit 3 of every half byte is zero.
inline constexpr uint32_t kLowerLevels = 0x0f0f0f0fu;

#ifndef OSCAR_TRELLIS_FORM
#define OSCAR_TRELLIS_FORM 0
#endif

// u of every channel, and y.
struct TrellisParts {
  uint32_t u, y;

  static __device__ __forceinline__ TrellisParts of(uint32_t word) {
    const uint32_t u = word & 0x55555555u;
#if OSCAR_TRELLIS_FORM >= 1
    const ptx::WidePair before = ptx::wide_product(u, 16);
    return {u, ptx::exclusive_or(word, before.low, before.high)};
#else
    return {u, word ^ ptx::rotated(u, 4)};
#endif
  }
  // Half bytes of y in bits 1 and 2, and u of the channel before in bit 0. Half byte i of either:
  static constexpr uint32_t kUpper = 0x66666666u;
  // is of channel 2i;
  __device__ __forceinline__ uint32_t even() const {
#if OSCAR_TRELLIS_FORM >= 2
    // The last channel's u comes round to bit 0.
    const ptx::WidePair before = ptx::wide_product(u, 4);
    return ptx::selected_bits(2 * y + before.high, before.low, kUpper | 1);
#else
    return ptx::selected_bits(y << 1, ptx::rotated(u, 2), kUpper);
#endif
  }
  // is of channel 2i + 1, behind whose u its predecessor's lies already.
  __device__ __forceinline__ uint32_t odd() const {
#if OSCAR_TRELLIS_FORM >= 3
    return ptx::selected_bits(ptx::wide_product(y, 0x80000000u).high, u, kUpper);
#else
    return ptx::selected_bits(y >> 1, u, kUpper);
#endif
  }
  // is of channel 2i + parity, by rotations that may differ from lane to lane.
  __device__ __forceinline__ uint32_t of_parity(int parity) const {
    return ptx::selected_bits(ptx::rotated(y, parity ? 31 : 1), ptx::rotated(u, parity ? 0 : 2),
                              kUpper);
  }
};

// Byte `byte` of a and of b in halves of a word. Their highest bits are zero, which the instruction
// spreads over the upper bytes. byte: known when compiled.
__device__ __forceinline__ uint32_t byte_pair(uint32_t a, uint32_t b, int byte) {
  return ptx::permuted_bytes(a, b, 0xc480u + 0x1111u * static_cast<uint32_t>(byte));
}

}  // namespace oscar::cuda

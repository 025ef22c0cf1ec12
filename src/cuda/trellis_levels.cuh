// Trellis codes of a word (format/trellis.h) to levels in half bytes: what the operands of matrix
// instructions are masked out of. docs/adr/0017-cuda-trellis.md counts the operations.
//
// level_t = 2·y_t + u_{t−1}, where y_t = 2·a_t + (u_t ⊕ u_{t−2}) lies where the code does. Channel
// t is in byte t / 4 of the word.
#pragma once

#include <cstdint>

#include "cuda/ptx/scalar.h"

namespace oscar::cuda {

inline constexpr uint32_t kLowerLevels = 0x0f0f0f0fu;  // of half bytes
inline constexpr uint32_t kUpperBits = 0x66666666u;    // of the levels in half bytes

// Levels plus four: bit 3 is a and bit 2 its complement, which saves taking the a out of the words
// that give bit 0.
struct RaisedLevels {
  uint32_t even, odd;  // half byte i: channels 2i, 2i + 1

  static __device__ __forceinline__ RaisedLevels of(uint32_t word) {
    using ptx::kA, ptx::kB, ptx::kC;
    // v at the places of u, and the complement of a.
    const uint32_t y =
        ptx::logic<((kA ^ kB) & kC) | ~(kA | kC)>(word, ptx::rotated(word, 4), 0x55555555u);
    return {ptx::selected_bits(y << 1, ptx::rotated(word, 2), kUpperBits),
            ptx::selected_bits(y >> 1, word, kUpperBits)};
  }
};

// The levels themselves, bit 3 zero.
struct TrellisParts {
  uint32_t u, y;

  static __device__ __forceinline__ TrellisParts of(uint32_t word) {
    const uint32_t u = word & 0x55555555u;
    return {u, word ^ ptx::rotated(u, 4)};
  }
  // Half byte i: of channel 2i;
  __device__ __forceinline__ uint32_t even() const {
    return ptx::selected_bits(y << 1, ptx::rotated(u, 2), kUpperBits);
  }
  // of channel 2i + 1, behind whose u its predecessor's lies already;
  __device__ __forceinline__ uint32_t odd() const {
    return ptx::selected_bits(y >> 1, u, kUpperBits);
  }
  // of channel 2i + parity, by rotations that may differ from lane to lane.
  __device__ __forceinline__ uint32_t of_parity(int parity) const {
    return ptx::selected_bits(ptx::rotated(y, parity ? 31 : 1), ptx::rotated(u, parity ? 0 : 2),
                              kUpperBits);
  }
};

// Byte `byte` of a and of b in halves of a word. Their highest bits are zero, which the instruction
// spreads over the upper bytes. byte: known when compiled.
__device__ __forceinline__ uint32_t byte_pair(uint32_t a, uint32_t b, int byte) {
  return ptx::permuted_bytes(a, b, 0xc480u + 0x1111u * static_cast<uint32_t>(byte));
}

}  // namespace oscar::cuda

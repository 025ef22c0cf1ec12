// Trellis codes: 2 bits a channel that stand for a level of 3, since a level depends on the codes
// of the two channels before it.
//
// A word is the 32 bits of sixteen channels, t = 0 … 15, code_t = 2·a_t + u_t. With indices modulo
// 16:
//
//   level_t = 4·a_t + 2·(u_t ⊕ u_{t−2}) + u_{t−1}           0 … 7
//
// So of four levels two apart in sign each code chooses one, and which four these are depends on
// the path. A word decodes by two rotations and does not need its neighbours.
#pragma once

#include <cstdint>

namespace oscar {

inline constexpr int kTrellisChannels = 16;

// The low two bits of the levels, in the places of the codes; the third are the codes' upper bits.
// Word: std::uint32_t, or a vector of them.
template <typename Word>
[[gnu::always_inline]] constexpr Word trellis_low_bits(Word word) {
  const Word one_before = word << 2 | word >> 30;
  const Word two_before = word << 4 | word >> 28;
  return (one_before & 0x55555555u) | ((word ^ two_before) & 0x55555555u) << 1;
}

}  // namespace oscar

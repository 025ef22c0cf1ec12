// Which rows of matrix instructions the channels of trellis codes are: a lane decodes whole words
// of sixteen channels, so that its rows are channels of one word. docs/adr/0017-cuda-trellis.md.
#pragma once

#include "cuda/device_layout.h"

namespace oscar::cuda {

// Values. Position 16·m + 8·half + g is row 8·half + g of matrix tile m, lane group g's. Head size
// 64 has four words for eight lane groups: two share one, and take its even and odd channels.
OSCAR_HD int trellis_value_channel(int head_dim, int position) {
  const int m = position % 128 / 16, half = position % 16 / 8, g = position % 8;
  if (head_dim == 64) return 16 * (g / 2) + 4 * (m / 2 * 2 + half) + 2 * (m % 2) + g % 2;
  return position / 128 * 128 + 16 * g + 2 * m + half;
}
OSCAR_HD int trellis_value_position(int head_dim, int channel) {
  if (head_dim == 64) {
    const int byte = channel % 16 / 4, i = channel % 4;
    return 16 * (byte / 2 * 2 + i / 2) + 8 * (byte % 2) + 2 * (channel / 16) + i % 2;
  }
  return channel / 128 * 128 + channel % 16 / 2 * 16 + channel % 2 * 8 + channel % 128 / 16;
}

// Keys. Lane quarter t has words t and t + 4·h of a tile; byte b of operand plane p: the lower and
// upper half bytes of even channels' levels (p = 0, 1) and of odd ones' (2, 3).
OSCAR_HD int trellis_key_channel(int p, int h, int b, int t) {
  return 16 * (t + 4 * h) + 4 * b + 2 * (p & 1) + p / 2;
}

}  // namespace oscar::cuda

// Channels a scale, where one number has to fit all layers.
#pragma once

#include <vector>

namespace oscar::calibrate {

inline constexpr int kGroupMultiple = 16;

// The largest multiple of 16 up to `wanted` that divides every one of `head_dims` (multiples of
// 16).
inline int common_group_size(const std::vector<int>& head_dims, int wanted) {
  for (int group = wanted - wanted % kGroupMultiple; group > kGroupMultiple;
       group -= kGroupMultiple) {
    bool divides_all = true;
    for (const int head_dim : head_dims) divides_all = divides_all && head_dim % group == 0;
    if (divides_all) return group;
  }
  return kGroupMultiple;
}

}  // namespace oscar::calibrate

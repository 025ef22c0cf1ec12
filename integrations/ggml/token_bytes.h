// One token's bytes of a plane as a run: code row, then its scale and zero point of each group.
#pragma once

#include <cstdint>

#include "format/plane_layout.h"

namespace oscar::ggml_plugin {

constexpr std::int64_t token_bytes(const PlaneLayout& layout) {
  return layout.plane_bytes() / kPageSize;
}

// out, in: [token_bytes(layout)]. token: 0..63.
void gather_token(const PlaneLayout& layout, const std::uint8_t* plane, std::int64_t token,
                  std::uint8_t* out);
void scatter_token(const PlaneLayout& layout, const std::uint8_t* in, std::int64_t token,
                   std::uint8_t* plane);

}  // namespace oscar::ggml_plugin

// One token of a plane in logical order: its codes, then the scale of every group, then the zero
// points where there are any.
#pragma once

#include <cstdint>

#include "format/plane_layout.h"

namespace oscar::cache {

constexpr std::int64_t token_row_bytes(const PlaneLayout& layout) {
  return layout.plane_bytes() / kPageSize;
}

// token: 0..63 of the page. bytes: [token_row_bytes]
void read_token_bytes(const PlaneLayout& layout, const std::uint8_t* plane, std::int64_t token,
                      std::uint8_t* bytes) noexcept;
void write_token_bytes(const PlaneLayout& layout, const std::uint8_t* bytes, std::int64_t token,
                       std::uint8_t* plane) noexcept;

}  // namespace oscar::cache

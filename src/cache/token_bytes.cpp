#include "cache/token_bytes.h"

#include <cstring>

namespace oscar::cache {
namespace {

constexpr std::int64_t kMetadataBytes = 2;  // a BF16 scale or zero point

// Calls piece(offset in the plane, offset in the row, size) for every contiguous part of a token.
template <typename Piece>
void for_each_piece(const PlaneLayout& layout, std::int64_t token, const Piece& piece) {
  const std::int64_t row_bytes = layout.code_row_bytes();
  piece(token * row_bytes, std::int64_t{0}, row_bytes);
  std::int64_t in_row = row_bytes;
  for (std::int64_t at = layout.scales_offset(); at < layout.plane_bytes();
       at += kMetadataBytes * kPageSize) {
    piece(at + kMetadataBytes * token, in_row, kMetadataBytes);
    in_row += kMetadataBytes;
  }
}

}  // namespace

void read_token_bytes(const PlaneLayout& layout, const std::uint8_t* plane, std::int64_t token,
                      std::uint8_t* bytes) noexcept {
  for_each_piece(layout, token, [&](std::int64_t in_plane, std::int64_t in_row, std::int64_t size) {
    std::memcpy(bytes + in_row, plane + in_plane, size);
  });
}

void write_token_bytes(const PlaneLayout& layout, const std::uint8_t* bytes, std::int64_t token,
                       std::uint8_t* plane) noexcept {
  for_each_piece(layout, token, [&](std::int64_t in_plane, std::int64_t in_row, std::int64_t size) {
    std::memcpy(plane + in_plane, bytes + in_row, size);
  });
}

}  // namespace oscar::cache

#include "token_bytes.h"

#include <cstring>

namespace oscar::ggml_plugin {
namespace {

constexpr std::int64_t kScalarBytes = 2;  // BF16 scale or zero point

// Calls piece(offset in the plane, offset in the run, bytes) for the code row and every scale and
// zero point.
template <typename Piece>
void for_each_piece(const PlaneLayout& layout, std::int64_t token, Piece piece) {
  const std::int64_t code_bytes = layout.code_row_bytes();
  piece(token * code_bytes, std::int64_t{0}, code_bytes);
  std::int64_t run = code_bytes;
  const std::int64_t row_bytes = kScalarBytes * kPageSize;
  for (std::int64_t at = layout.scales_offset(); at < layout.plane_bytes(); at += row_bytes) {
    piece(at + kScalarBytes * token, run, kScalarBytes);
    run += kScalarBytes;
  }
}

}  // namespace

void gather_token(const PlaneLayout& layout, const std::uint8_t* plane, std::int64_t token,
                  std::uint8_t* out) {
  for_each_piece(layout, token, [&](std::int64_t from, std::int64_t to, std::int64_t bytes) {
    std::memcpy(out + to, plane + from, static_cast<std::size_t>(bytes));
  });
}

void scatter_token(const PlaneLayout& layout, const std::uint8_t* in, std::int64_t token,
                   std::uint8_t* plane) {
  for_each_piece(layout, token, [&](std::int64_t to, std::int64_t from, std::int64_t bytes) {
    std::memcpy(plane + to, in + from, static_cast<std::size_t>(bytes));
  });
}

}  // namespace oscar::ggml_plugin

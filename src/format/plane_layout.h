// Bytes of one side (K or V) of one page for one KV head: the logical layout that files and tests
// speak.
//
//   codes  [kPageSize tokens][code_row_bytes]      2 bits: head_dim/4 bytes, four codes a byte, low
//   bits first
//                                                  3 bits: the 2-bit plane (low two bits), then
//                                                  head_dim/8 bytes with the
//                                                          third bit, eight a byte, low bits first
//                                                  4 bits: head_dim/2 bytes, two codes a byte, low
//                                                  bits first 16:     head_dim BF16 values
//   scales [num_groups][kPageSize] BF16            not for 16
//   zeros  [num_groups][kPageSize] BF16            kAffine only: the zero point, in code units
//
// A page's run for a KV head is K plane | V plane where one owner stores both; llama.cpp's cache
// stores the sides apart.
#pragma once

#include <cstdint>

#include "format/quant_spec.h"

namespace oscar {

struct PlaneLayout {
  int head_dim = 0;
  QuantSpec quant;

  [[gnu::always_inline]] constexpr int num_groups() const {
    return quant.bits == 16 ? 0 : head_dim / quant.group_size;
  }
  [[gnu::always_inline]] constexpr std::int64_t code_row_bytes() const {
    switch (quant.bits) {
      case 2: return head_dim / 4;
      case 3: return head_dim / 4 + head_dim / 8;
      case 4: return head_dim / 2;
      default: return std::int64_t{2} * head_dim;
    }
  }
  [[gnu::always_inline]] constexpr std::int64_t scales_offset() const {
    return kPageSize * code_row_bytes();
  }
  [[gnu::always_inline]] constexpr std::int64_t zeros_offset() const {
    return scales_offset() + std::int64_t{2} * kPageSize * num_groups();
  }
  // Bytes of the plane: all of it, 64 tokens.
  [[gnu::always_inline]] constexpr std::int64_t plane_bytes() const {
    return quant.codebook == Codebook::kAffine
               ? zeros_offset() + std::int64_t{2} * kPageSize * num_groups()
               : zeros_offset();
  }
  // Stored bits per value, metadata included.
  constexpr double bits_per_value() const {
    return 8.0 * static_cast<double>(plane_bytes()) / (kPageSize * head_dim);
  }

  // Throws Error(kInvalidArgument) naming the first value that is out of range.
  void validate() const;
  bool operator==(const PlaneLayout&) const = default;
};

static_assert(PlaneLayout{128, {2, 128, Codebook::kAffine}}.plane_bytes() * 2 == 4608);
static_assert(PlaneLayout{128, {2, 128, Codebook::kSymmetric}}.plane_bytes() * 2 == 64 * 68);
static_assert(PlaneLayout{64, {3, 64, Codebook::kSymmetric}}.plane_bytes() == 64 * 26);
static_assert(PlaneLayout{64, {16, 64}}.plane_bytes() == 64 * 128);

// One side of a layer's cache: [num_pages][num_kv_heads] planes. `base` may be written through only
// by the owner.
struct PlaneView {
  std::uint8_t* base = nullptr;
  std::int64_t page_stride_bytes = 0;
  std::int64_t head_stride_bytes = 0;
  PlaneLayout layout;

  std::uint8_t* plane(std::int64_t page, int kv_head) const {
    return base + page * page_stride_bytes + kv_head * head_stride_bytes;
  }
};

}  // namespace oscar

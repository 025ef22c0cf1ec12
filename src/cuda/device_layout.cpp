#include "cuda/device_layout.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace oscar::cuda {
namespace {

struct Copier {
  const std::uint8_t* src;
  std::uint8_t* dst;

  void code(CodePlace from, CodePlace to, int bits) const {
    const int mask = (1 << bits) - 1;
    const int code = (src[from.byte] >> from.shift) & mask;
    dst[to.byte] = static_cast<std::uint8_t>(dst[to.byte] | code << to.shift);
  }
  void half(int from, int to) const { std::copy_n(src + from, 2, dst + to); }
};

void reorder(const DevicePlane& from, const DevicePlane& to, const Copier& copy) {
  std::fill_n(copy.dst, to.plane_bytes(), std::uint8_t{0});
  for (int token = 0; token < kPageTokens; ++token) {
    for (int channel = 0; channel < from.head_dim; ++channel) {
      copy.code(from.low(token, channel), to.low(token, channel), from.low_bits());
      if (from.bits == 3) copy.code(from.high(token, channel), to.high(token, channel), 1);
    }
    for (int group = 0; group < from.num_groups(); ++group) {
      copy.half(from.scale_offset(group, token), to.scale_offset(group, token));
      if (from.affine) copy.half(from.zero_offset(group, token), to.zero_offset(group, token));
    }
  }
}

DevicePlane in_logical_order(DevicePlane plane) {
  plane.permuted = false;
  return plane;
}

}  // namespace

DevicePlane device_plane(const PlaneLayout& layout, Side side) {
  layout.validate();
  const QuantSpec& quant = layout.quant;
  if (quant.bits == 16) {
    throw Error(ErrorCode::kUnsupported,
                "16-bit sides have no device layout; legal bits on CUDA: 2, 3, 4");
  }
  const int head_dim = layout.head_dim;
  const bool has_tiles = head_dim == 64 || head_dim == 128 || head_dim == 256;
  const bool has_bits = quant.bits != 3 || side == Side::kKey;
  return {head_dim,
          quant.bits,
          quant.group_size,
          quant.codebook == Codebook::kAffine,
          has_tiles && has_bits,
          side,
          quant.codebook == Codebook::kTrellis};
}

void to_device_order(const PlaneLayout& layout, Side side, const std::uint8_t* src,
                     std::uint8_t* dst) {
  const DevicePlane plane = device_plane(layout, side);
  reorder(in_logical_order(plane), plane, {src, dst});
}

void to_logical_order(const PlaneLayout& layout, Side side, const std::uint8_t* src,
                      std::uint8_t* dst) {
  const DevicePlane plane = device_plane(layout, side);
  reorder(plane, in_logical_order(plane), {src, dst});
}

}  // namespace oscar::cuda

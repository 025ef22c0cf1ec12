// Where a code lies in a plane on the device: a permutation of the logical plane
// (format/plane_layout.h), byte for byte as long.
//
//   codes of 2 or 4 bits | third bits (3-bit keys) | scales and zero points
//
// Codes are stored as the operand fragments of the tensor cores, so that a lane reads 16 bytes and
// multiplies. A slab is 16 tokens; lane 4·g + t of a warp holds tokens g and g + 8 of a slab
// (keys), or channel g of tokens 2t, 2t + 1, 2t + 8, 2t + 9 (values). A byte holds codes of one
// token alone, so tokens are written independently. Shapes without a permutation keep the logical
// order.
//
// Trellis codes (format/trellis.h): a word of sixteen channels stays one little-endian word in its
// logical order, so that a lane decodes what it loads by itself; docs/adr/0017-cuda-trellis.md.
#pragma once

#include <cstdint>

#include "format/plane_layout.h"
#include "format/trellis.h"

#ifdef __CUDACC__
#define OSCAR_HD __host__ __device__ __forceinline__
#else
#define OSCAR_HD inline
#endif

namespace oscar::cuda {

inline constexpr int kSlab = 16;                // tokens of one matrix instruction
inline constexpr int kPageTokens = kPageSize;   // 64
inline constexpr int kDeviceLayoutVersion = 1;  // named in saved pages

enum class Side : std::uint8_t { kKey = 0, kValue = 1 };

struct CodePlace {
  int byte;   // offset in the plane
  int shift;  // of the code's lowest bit in that byte
};

// Trivially copyable, passed to kernels by value.
struct DevicePlane {
  int head_dim = 0;
  int bits = 0;  // 2, 3 or 4
  int group_size = 0;
  bool affine = false;
  bool permuted = false;
  Side side = Side::kKey;
  bool trellis = false;  // 2 bits, not affine

  OSCAR_HD int level_bits() const { return trellis ? 3 : bits; }
  // The zero point where none is stored.
  OSCAR_HD float centre() const { return static_cast<float>((1 << level_bits()) - 1) / 2; }
  OSCAR_HD int num_groups() const { return head_dim / group_size; }
  OSCAR_HD int low_bits() const { return bits == 4 ? 4 : 2; }
  OSCAR_HD int codes_per_byte() const { return bits == 4 ? 2 : 4; }
  OSCAR_HD int low_bytes_per_token() const { return head_dim / codes_per_byte(); }
  OSCAR_HD int high_bytes_per_token() const { return bits == 3 ? head_dim / 8 : 0; }
  OSCAR_HD int code_bytes() const {
    return kPageTokens * (low_bytes_per_token() + high_bytes_per_token());
  }
  OSCAR_HD int metadata_bytes_per_group() const { return kPageTokens * (affine ? 4 : 2); }
  OSCAR_HD int plane_bytes() const {
    return code_bytes() + num_groups() * metadata_bytes_per_group();
  }

  // The channels of one byte are first, first + stride, …; byte k of a token starts at channel
  // first_channel(k, …).
  OSCAR_HD int low_stride() const {
    if (!permuted || trellis) return 1;
    if (side == Side::kValue || (head_dim == 64 && bits != 4)) return 16;
    return 32;
  }
  OSCAR_HD int high_stride() const { return !permuted ? 1 : head_dim == 64 ? 8 : 16; }
  static OSCAR_HD int first_channel(int k, int stride, int per_byte) {
    return k / stride * (stride * per_byte) + k % stride;
  }

  // The low two bits (bits 2 and 3), or the code (bits 4), of a token in its page and a channel.
  OSCAR_HD CodePlace low(int token, int channel) const {
    if (!permuted) {
      const int row = token * (low_bytes_per_token() + high_bytes_per_token());
      return {row + channel / codes_per_byte(), low_bits() * (channel % codes_per_byte())};
    }
    if (trellis) {
      const CodePlace code = {channel % kTrellisChannels / 4, 2 * (channel % 4)};
      return {trellis_word(token, channel / kTrellisChannels) + code.byte, code.shift};
    }
    return side == Side::kKey ? key_low(token, channel) : value_low(token, channel);
  }

  // Offset of word `word` of a token of trellis codes, a multiple of 4.
  OSCAR_HD int trellis_word(int token, int word) const {
    if (!permuted) return token * low_bytes_per_token() + 4 * word;
    return side == Side::kKey ? key_word(token, word) : value_word(token, word);
  }
  // The level of a channel; bytes: of the plane. Trellis codes only.
  OSCAR_HD int trellis_level(const std::uint8_t* bytes, int token, int channel) const {
    const std::uint8_t* p = bytes + trellis_word(token, channel / kTrellisChannels);
    const std::uint32_t codes =
        p[0] | p[1] << 8 | p[2] << 16 | static_cast<std::uint32_t>(p[3]) << 24;
    const int shift = 2 * (channel % kTrellisChannels);
    return static_cast<int>((trellis_low_bits(codes) >> shift & 3) | (codes >> shift & 2) << 1);
  }

  // The third bit; bits == 3 only.
  OSCAR_HD CodePlace high(int token, int channel) const {
    if (!permuted) {
      const int row = token * (low_bytes_per_token() + high_bytes_per_token());
      return {row + low_bytes_per_token() + channel / 8, channel % 8};
    }
    const int base = kPageTokens * low_bytes_per_token();
    const int slab = token / kSlab, g = token % 8, half = token % kSlab / 8;
    const int n = channel % 128 / 8, t = channel % 8 / 2, e = channel % 2, lane = 4 * g + t;
    if (head_dim == 64) return {base + (slab * 32 + lane) * 4 + half * 2 + e, n};
    const int tile = slab * (head_dim / 128) + channel / 128;
    return {base + (tile * 32 + lane) * 8 + half * 4 + (n % 2) * 2 + e, n / 2};
  }

  OSCAR_HD int scale_offset(int group, int token) const {
    if (!permuted) return code_bytes() + 2 * (group * kPageTokens + token);
    const int row = (group * 4 + token / kSlab) * 8 + token % 8;
    return code_bytes() + row * (affine ? 8 : 4) + token % kSlab / 8 * (affine ? 4 : 2);
  }
  // Affine only.
  OSCAR_HD int zero_offset(int group, int token) const {
    return permuted ? scale_offset(group, token) + 2
                    : scale_offset(group, token) + 2 * num_groups() * kPageTokens;
  }

 private:
  // Tile: 16 tokens × 32 bytes (16 bytes at head size 64, two slabs then share a lane's 16 bytes).
  OSCAR_HD CodePlace key_low(int token, int channel) const {
    const int slab = token / kSlab, g = token % 8, half = token % kSlab / 8;
    const int t = channel % 8 / 2, e = channel % 2, lane = 4 * g + t;
    if (bits != 4 && head_dim == 64) {
      const int n = channel / 8;
      const int word = slab % 2 * 2 + half;
      return {(slab / 2 * 32 + lane) * 16 + word * 4 + n % 2 * 2 + e, 2 * (n / 2)};
    }
    const int tile_channels = 32 * codes_per_byte();
    const int n = channel % tile_channels / 8;
    const int tile = slab * (head_dim / tile_channels) + channel / tile_channels;
    const int word = n % 4 / 2 * 2 + half;
    return {(tile * 32 + lane) * 16 + word * 4 + n % 2 * 2 + e, low_bits() * (n / 4)};
  }

  // Tiles of trellis words, of head size 128 and 256 as many as of plain codes and as large. Keys:
  // lane 4g + t holds words t (and t + 4) of tokens g and g + 8.
  OSCAR_HD int key_word(int token, int word) const {
    const int slab = token / kSlab, half = token % kSlab / 8;
    const int lane = 4 * (token % 8) + word % 4;
    if (head_dim == 64) return (slab / 2 * 32 + lane) * 16 + (slab % 2 * 2 + half) * 4;
    const int tile = slab * (head_dim / 128) + word / 8;
    return (tile * 32 + lane) * 16 + (word % 8 / 4 * 2 + half) * 4;
  }
  // Values: word g of four tokens in lane 4g + t; of head size 64 lanes g and g ^ 1 share it.
  OSCAR_HD int value_word(int token, int word) const {
    const int slab = token / kSlab, t = token % 8 / 2;
    const int in_lane = (token % kSlab / 8 * 2 + token % 2) * 4;
    if (head_dim == 64) return (slab * 16 + 4 * word + t) * 16 + in_lane;
    const int tile = slab * (head_dim / 128) + word / 8;
    return (tile * 32 + 4 * (word % 8) + t) * 16 + in_lane;
  }

  OSCAR_HD CodePlace value_low(int token, int channel) const {
    const int slab = token / kSlab, in_slab = token % kSlab, t = in_slab % 8 / 2;
    const int g = channel % 8, half = channel % 16 / 8, lane = 4 * g + t;
    const int word = in_slab / 8 * 2 + half;
    if (bits == 2 && head_dim == 64) {
      const int byte = slab % 2 * 2 + token % 2;
      return {(slab / 2 * 32 + lane) * 16 + word * 4 + byte, 2 * (channel / 16)};
    }
    const int tile_channels = 32 * codes_per_byte();
    const int m = channel % tile_channels / 16;
    const int tile = slab * (head_dim / tile_channels) + channel / tile_channels;
    const int byte = m / codes_per_byte() * 2 + token % 2;
    return {(tile * 32 + lane) * 16 + word * 4 + byte, low_bits() * (m % codes_per_byte())};
  }
};

// The device plane of a logical plane. Permuted: head sizes 64, 128, 256 with keys of 2, 3, 4 bits
// and values of 2, 4 bits. Throws Error(kInvalidArgument | kUnsupported): 16 bits have no codes.
DevicePlane device_plane(const PlaneLayout& layout, Side side);

// One plane (layout.plane_bytes() bytes) from logical to device order and back. src and dst may not
// overlap.
void to_device_order(const PlaneLayout& layout, Side side, const std::uint8_t* src,
                     std::uint8_t* dst);
void to_logical_order(const PlaneLayout& layout, Side side, const std::uint8_t* src,
                      std::uint8_t* dst);

}  // namespace oscar::cuda

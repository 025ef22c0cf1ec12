// Codes in matrix fragments to the bytes of a device plane. The plane's order (device_layout.h) is
// the fragments' own for keys, and their transpose for values.
#pragma once

#include "cuda/encode/row_codes.cuh"
#include "cuda/encode_params.h"

namespace oscar::cuda::encode {

// Where rows g (and g + 8) of a warp go.
template <int kHalves>
struct RowPlaces {
  std::uint8_t* planes[kHalves];  // null: nowhere
  int tokens[kHalves];            // in the page
  bool is_slab;                   // the sixteen rows are the sixteen tokens of one slab, in order
};

// A lane's bytes of one row. Keys: words in the order of channels, then the third bits. Values: per
// plane tile and channel half, the bytes of class 2t in the low 16 bits, of 2t + 1 in the high.
struct RowBytes {
  uint32_t words[4];
  uint32_t high;
};

template <int kHeadDim, int kBits>
struct RowPacker {
  static constexpr int kTiles = kHeadDim / 8;
  static constexpr int kPerByte = kBits == 4 ? 2 : 4;
  static constexpr int kStep = kBits == 4 ? 4 : 2;  // bits a code takes
  static constexpr uint32_t kMask = kBits == 4 ? 15 : 3;

  static __device__ __forceinline__ DevicePlane plane(Side side) {
    return {kHeadDim, kBits, kHeadDim, false, true, side};
  }

  // Channels of a 16-byte-a-lane tile of keys, and the distance of the column tiles in a byte.
  static constexpr int kKeyChannels = kHeadDim == 64 && kBits != 4 ? 64 : 32 * kPerByte;
  static constexpr int kStride = kKeyChannels / 8 / kPerByte;
  static constexpr int kKeyTiles = kHeadDim / kKeyChannels, kKeyWords = kStride / 2;

  static __device__ __forceinline__ RowBytes keys(const CodeFragment<kTiles>& codes) {
    RowBytes bytes{{0, 0, 0, 0}, 0};
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
#pragma unroll
      for (int n = 0; n < kKeyChannels / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          // Codes of two or four bits take their field whole.
          const uint32_t code = codes[tile * (kKeyChannels / 8) + n][e];
          const int shift = n % 2 * 16 + e * 8 + n / kStride * kStep;
          bytes.words[tile * kKeyWords + n % kStride / 2] += (kBits == 3 ? code & kMask : code)
                                                             << shift;
        }
      }
    }
    if constexpr (kBits == 3) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int shift = kHeadDim == 64 ? 8 * e + n : n % 2 * 16 + 8 * e + n / 2;
          bytes.high += (codes[n][e] >> 2) << shift;
        }
      }
    }
    return bytes;
  }

  static __device__ __forceinline__ void store_key(const RowBytes& bytes, std::uint8_t* base,
                                                   int token) {
    const int t = threadIdx.x & 3;
#pragma unroll
    for (int w = 0; w < kKeyTiles * kKeyWords; ++w) {
      const int channel = w / kKeyWords * kKeyChannels + 16 * (w % kKeyWords) + 2 * t;
      *reinterpret_cast<uint32_t*>(base + plane(Side::kKey).low(token, channel).byte) =
          bytes.words[w];
    }
    if constexpr (kBits == 3) store_third_bits(bytes, base, token);
  }
  static __device__ __forceinline__ void store_third_bits(const RowBytes& bytes, std::uint8_t* base,
                                                          int token) {
    std::uint8_t* p = base + plane(Side::kKey).high(token, 2 * (threadIdx.x & 3)).byte;
    if constexpr (kHeadDim == 64) {
      *reinterpret_cast<uint16_t*>(p) = static_cast<uint16_t>(bytes.high);
    } else {
      *reinterpret_cast<uint32_t*>(p) = bytes.high;
    }
  }
  // Sixteen tokens of a slab, in order.
  static __device__ __forceinline__ void store_key_slab(const RowBytes (&rows)[2],
                                                        std::uint8_t* base, int token) {
    const int lane = threadIdx.x & 31, slab = token / kSlab;
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
      const uint32_t *a = rows[0].words + tile * kKeyWords, *b = rows[1].words + tile * kKeyWords;
      if constexpr (kKeyWords == 1) {
        *reinterpret_cast<uint2*>(base + (slab / 2 * 32 + lane) * 16 + slab % 2 * 8) = {a[0], b[0]};
      } else {
        *reinterpret_cast<uint4*>(base + ((slab * kKeyTiles + tile) * 32 + lane) * 16) = {
            a[0], b[0], a[1], b[1]};
      }
    }
    if constexpr (kBits == 3) {
      store_third_bits(rows[0], base, token + (lane >> 2));
      store_third_bits(rows[1], base, token + 8 + (lane >> 2));
    }
  }

  static constexpr int kValueChannels = kHeadDim == 64 && kBits == 2 ? 64 : 32 * kPerByte;
  static constexpr int kValueTiles = kHeadDim / kValueChannels;
  static constexpr int kValueBytes = kValueChannels / 16 / kPerByte;  // of a class, tile and half

  static __device__ __forceinline__ RowBytes values(const CodeFragment<kTiles>& codes) {
    RowBytes bytes{{0, 0, 0, 0}, 0};
#pragma unroll
    for (int tile = 0; tile < kValueTiles; ++tile) {
#pragma unroll
      for (int n = 0; n < kValueChannels / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          bytes.words[2 * tile + n % 2] += codes[tile * (kValueChannels / 8) + n][e]
                                           << (16 * e + n / 2 * kStep);
        }
      }
    }
    return bytes;
  }

  static __device__ __forceinline__ void store_value(const RowBytes& bytes, std::uint8_t* base,
                                                     int token) {
    const int t = threadIdx.x & 3;
#pragma unroll
    for (int w = 0; w < 2 * kValueTiles; ++w) {
#pragma unroll
      for (int i = 0; i < 2 * kValueBytes; ++i) {
        const int e = i / kValueBytes, b = i % kValueBytes;
        const int channel = w / 2 * kValueChannels + 16 * kPerByte * b + 8 * (w % 2) + 2 * t + e;
        base[plane(Side::kValue).low(token, channel).byte] =
            static_cast<std::uint8_t>(bytes.words[w] >> (16 * e + 8 * b));
      }
    }
  }
  static __device__ __forceinline__ void store_value_slab(const RowBytes (&rows)[2],
                                                          std::uint8_t* base, int token) {
    const int lane = threadIdx.x & 31, slab = token / kSlab;
#pragma unroll
    for (int tile = 0; tile < kValueTiles; ++tile) {
      uint32_t words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        words[w] = __byte_perm(ptx::transpose_8x8(rows[w / 2].words[2 * tile + w % 2]), 0, 0x3120);
      }
      if constexpr (kValueBytes == 1) {
        // One byte a token: a slab has half of each word.
        std::uint8_t* p = base + (slab / 2 * 32 + lane) * 16 + slab % 2 * 2;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          *reinterpret_cast<uint16_t*>(p + 4 * w) = static_cast<uint16_t>(words[w]);
        }
      } else {
        *reinterpret_cast<uint4*>(base + ((slab * kValueTiles + tile) * 32 + lane) * 16) = {
            words[0], words[1], words[2], words[3]};
      }
    }
  }
};

template <int kHeadDim>
__device__ __forceinline__ RowBytes pack_row(const CodeFragment<kHeadDim / 8>& codes, int side,
                                             int bits) {
  if (side == 0) {
    return bits == 2   ? RowPacker<kHeadDim, 2>::keys(codes)
           : bits == 3 ? RowPacker<kHeadDim, 3>::keys(codes)
                       : RowPacker<kHeadDim, 4>::keys(codes);
  }
  return bits == 2 ? RowPacker<kHeadDim, 2>::values(codes) : RowPacker<kHeadDim, 4>::values(codes);
}

// Codes of 2 bits as floats with kMagic added: what the constant adds to every word is taken off.
template <int kHeadDim>
__device__ __forceinline__ RowBytes pack_shifted_row(const CodeFragment<kHeadDim / 8>& codes,
                                                     int side) {
  CodeFragment<kHeadDim / 8> nothing;
#pragma unroll
  for (auto& pair : nothing) pair[0] = pair[1] = kMagicBits;
  RowBytes bytes = pack_row<kHeadDim>(codes, side, 2);
  const RowBytes rest = pack_row<kHeadDim>(nothing, side, 2);
#pragma unroll
  for (int w = 0; w < 4; ++w) bytes.words[w] -= rest.words[w];
  return bytes;
}

template <int kHeadDim, int kBits, int kHalves>
__device__ __forceinline__ void store_rows(const RowBytes (&rows)[kHalves], int side,
                                           const RowPlaces<kHalves>& places) {
  using Packer = RowPacker<kHeadDim, kBits>;
  if constexpr (kHalves == 2) {
    if (places.is_slab) {
      // Token 0 of the slab is lane 0's.
      const int token = places.tokens[0] / kSlab * kSlab;
      if (side == 0) {
        Packer::store_key_slab(rows, places.planes[0], token);
      } else if constexpr (kBits != 3) {
        Packer::store_value_slab(rows, places.planes[0], token);
      }
      return;
    }
  }
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    if (places.planes[h] == nullptr) continue;
    if (side == 0) {
      Packer::store_key(rows[h], places.planes[h], places.tokens[h]);
    } else if constexpr (kBits != 3) {
      Packer::store_value(rows[h], places.planes[h], places.tokens[h]);
    }
  }
}

// Stored scales (and zero points) of the rows; one lane a row.
template <int kHalves>
__device__ __forceinline__ void store_scales(const DevicePlane& plane,
                                             const RowPlaces<kHalves>& places,
                                             const uint32_t (&scale_zero)[kHalves]) {
  if ((threadIdx.x & 3) != 0) return;
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    if (places.planes[h] == nullptr) continue;
    std::uint8_t* p = places.planes[h] + plane.scale_offset(0, places.tokens[h]);
    if (plane.affine) {
      *reinterpret_cast<uint32_t*>(p) = scale_zero[h];
    } else {
      *reinterpret_cast<uint16_t*>(p) = static_cast<uint16_t>(scale_zero[h]);
    }
  }
}

}  // namespace oscar::cuda::encode

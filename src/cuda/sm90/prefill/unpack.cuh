// Tiles of a page as operands of wgmma, by four warps: codes are masked where they lie in their
// bytes, one operation for two of them, and stored 16 bytes a lane.
#pragma once

#include "cuda/ptx/memory.h"
#include "cuda/ptx/mma.h"
#include "cuda/ptx/scalar.h"
#include "cuda/sm90/prefill/config.h"
#include "cuda/trellis_levels.cuh"

namespace oscar::cuda::sm90 {

// `mask` in both halves of a word.
__device__ __forceinline__ constexpr uint32_t both_halves(uint32_t mask) {
  return mask * 0x00010001u;
}

// What a thread of the four warps reads of a page, fetched ahead.
template <class C>
struct PageBytes {
  static constexpr bool kNarrowKeys = C::kHeadDim == 64 && C::kKeyBits != 4;
  static constexpr bool kNarrowValues = C::kHeadDim == 64 && C::kValueBits == 2 && !C::kTrellis;
  static constexpr int kKeyTiles = kNarrowKeys ? 1 : C::kHeadDim / (32 * C::kKeysPerByte);
  static constexpr int kValueTiles =
      kNarrowValues || C::kTrellis ? 1 : C::kHeadDim / (32 * C::kValuesPerByte);
  static constexpr int kHighWords = C::kKeyBits != 3 ? 0 : C::kHeadDim / 64;

  uint4 keys[kKeyTiles];  // narrow: of two slabs
  uint32_t high[kHighWords > 0 ? kHighWords : 1];
  uint4 values[kNarrowValues ? 1 : 2];  // of two slabs
  uint2 turn;           // with the mean: cosine and sine of pair `thread` at the page's start
  uint32_t scale_zero;  // BF16 pair of token `thread % 64`: threads 64 on values

  // index: of the page in its sequence.
  __device__ __forceinline__ void load(const AttendParams& params, const std::uint8_t* page,
                                       int index, int thread) {
    if constexpr (C::kMean) {
      if (thread < params.mean.num_pairs) {
        turn = __ldg(reinterpret_cast<const uint2*>(params.mean.start) +
                     std::int64_t{index} * params.mean.num_pairs + thread);
      }
    }
    const int slab = thread / 32, lane = thread % 32, pair = slab / 2, part = slab % 2;
    const uint4* key = reinterpret_cast<const uint4*>(page);
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
      keys[tile] = __ldg(key + (kNarrowKeys ? slab / 2 : slab * kKeyTiles + tile) * 32 + lane);
    }
    if constexpr (C::kKeyBits == 3) {
      const uint32_t* plane = reinterpret_cast<const uint32_t*>(
          page + kPageTokens * C::kHeadDim / 4 + (slab * 32 + lane) * 4 * kHighWords);
#pragma unroll
      for (int w = 0; w < kHighWords; ++w) high[w] = __ldg(plane + w);
    }
    const std::uint8_t* value_plane = page + params.key.plane_bytes();
    const uint4* value = reinterpret_cast<const uint4*>(value_plane) + lane;
    if constexpr (kNarrowValues) {
      values[0] = __ldg(value + pair * 32);
    } else if constexpr (C::kTrellis && C::kHeadDim == 64) {
      // Two lane groups share a word.
      const uint4* words = reinterpret_cast<const uint4*>(value_plane) + 4 * (lane >> 3) + lane % 4;
#pragma unroll
      for (int sp = 0; sp < 2; ++sp) values[sp] = __ldg(words + (2 * pair + sp) * 16);
    } else {
#pragma unroll
      for (int sp = 0; sp < 2; ++sp) {
        const int tile = kValueTiles == 2 ? part : 0;
        values[sp] = __ldg(value + ((2 * pair + sp) * kValueTiles + tile) * 32);
      }
    }
    const DevicePlane& plane = thread < kPageTokens ? params.key : params.value;
    const std::uint8_t* scales =
        (thread < kPageTokens ? page : value_plane) + plane.scale_offset(0, thread % kPageTokens);
    scale_zero = __ldg(reinterpret_cast<const unsigned short*>(scales));
    if (plane.affine) {
      scale_zero |= uint32_t{__ldg(reinterpret_cast<const unsigned short*>(scales) + 1)} << 16;
    }
  }

  // The page's tiles. stage: shared address; num_valid: tokens beyond hold anything.
  // key_unit: what a key scale is multiplied by.
  __device__ __forceinline__ void unpack(const AttendParams& params, uint32_t stage, int num_valid,
                                         float key_unit, int thread) const {
    unpack_keys(stage, thread / 32, thread % 32);
    if constexpr (C::kTrellis) {
      store_value_levels(stage + C::kKeyBytes, thread / 32, thread % 32);
    } else {
      unpack_values(stage + C::kKeyBytes, thread / 32, thread % 32);
    }
    if constexpr (C::kMean) {
      if (thread < kHopperPrefillMeanPairs)
        ptx::store_shared_8(stage + C::kTurnBegin + 8 * thread, turn);
    }
    const bool is_key = thread < kPageTokens;
    const int token = thread % kPageTokens, bits = is_key ? C::kKeyBits : C::kValueBits;
    float scale = ptx::low_bf16(scale_zero) * (is_key ? key_unit : 1.0f);
    float zero = (is_key ? params.key : params.value).affine
                     ? ptx::high_bf16(scale_zero)
                     : static_cast<float>((1 << bits) - 1) / 2;
    if constexpr (C::kTrellis) zero = 3.5f;
    if (token >= num_valid) scale = zero = 0;
    ptx::store_shared_8(stage + C::kKeyBytes + C::kValueBytes + (is_key ? 0 : C::kScaleBytes) +
                            8 * column_of_token(token),
                        {__float_as_uint(scale), __float_as_uint(zero)});
  }

 private:
  __device__ __forceinline__ void unpack_keys(uint32_t tile_base, int slab, int lane) const {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = column_of_token(16 * slab + 8 * half + g);
      const uint32_t row = tile_base + column / 8 * C::kKeyRow + column % 8 * 16;
      const auto store = [&](int chunk, const uint32_t(&w)[4]) {
        ptx::store_shared_16(row + (chunk + t) * C::kMatrixBytes, {w[0], w[1], w[2], w[3]});
      };
      if constexpr (C::kTrellis) {
        store_levels(store, slab, half);
      } else if constexpr (kNarrowKeys) {
        const uint4 x = keys[0];
        // Words of this slab: the lower two of an even one.
        const uint32_t low = slab % 2 ? (half ? x.w : x.z) : (half ? x.y : x.x);
        const uint32_t codes[2] = {low, low >> 8};
        uint32_t thirds[2] = {0, 0};
        if constexpr (C::kKeyBits == 3) {
          // Bit 2i + u of a byte to bit 2i + 2 of half u.
          thirds[0] = (high[0] >> 16 * half & 255) * 0x00020004u;
          thirds[1] = (high[0] >> (16 * half + 8) & 255) * 0x00020004u;
        }
#pragma unroll
        for (int block = 0; block < 2; ++block) {
          uint32_t words[4];
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            words[w] = code(codes[w % 2], thirds[w % 2], 2 * block + w / 2);
          }
          store(4 * block, words);
        }
      } else {
#pragma unroll
        for (int tile = 0; tile < kKeyTiles; ++tile) {
          const uint4 x = keys[tile];
          const uint32_t low[2] = {half ? x.y : x.x, half ? x.w : x.z};
#pragma unroll
          for (int i = 0; i < C::kKeysPerByte; ++i) {
            uint32_t words[4];
#pragma unroll
            for (int w = 0; w < 4; ++w) {
              const int q = w / 2, e = w % 2;
              // Bit q + 2i of a byte to bit 2i + 2.
              const uint32_t third = C::kKeyBits == 3
                                         ? (high[half % (kHighWords > 0 ? kHighWords : 1)] >> 8 * e)
                                               << (2 - q)
                                         : 0u;
              words[w] = code(low[q] >> 8 * e, third, i);
            }
            store(4 * (tile * C::kKeysPerByte + i), words);
          }
        }
      }
    }
  }
  // Levels of trellis codes of tokens 8·half + g, in the order of trellis_key_channel.
  template <typename Store>
  __device__ __forceinline__ void store_levels(Store store, int slab, int half) const {
    constexpr int kWords = kNarrowKeys ? 1 : 2;
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
      const uint4 x = keys[tile];
      uint32_t codes[2] = {half ? x.y : x.x, half ? x.w : x.z};
      // Words of this slab: the lower two of an even one.
      if (kNarrowKeys) codes[0] = slab % 2 ? (half ? x.w : x.z) : (half ? x.y : x.x);
      uint32_t levels[2][2] = {};  // of even and odd channels
#pragma unroll
      for (int q = 0; q < kWords; ++q) {
        const TrellisParts parts = TrellisParts::of(codes[q]);
        levels[0][q] = parts.even();
        levels[1][q] = parts.odd();
      }
#pragma unroll
      for (int block = 0; block < 2 * kWords; ++block) {
        uint32_t words[4];
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const int p = kNarrowKeys ? 2 * block + w / 2 : block, q = kNarrowKeys ? 0 : w / 2;
          words[w] = levels[p / 2][q] >> 8 * (w % 2) & both_halves(15u << 4 * (p & 1));
        }
        store(4 * (2 * kWords * tile + block), words);
      }
    }
  }
  // Code i of the bytes at bits 0 and 16, with their third bits.
  static __device__ __forceinline__ uint32_t code(uint32_t low, uint32_t third, int i) {
    const uint32_t x = low & both_halves(((1u << C::kKeyStep) - 1) << C::kKeyStep * i);
    return C::kKeyBits == 3 ? x | (third & both_halves(1u << (2 * i + 2))) : x;
  }

  __device__ __forceinline__ void unpack_values(uint32_t tile_base, int slab, int lane) const {
    const int g = lane >> 2, t = lane & 3, pair = slab / 2, part = slab % 2;
    const uint32_t row = tile_base + g * 16 + (4 * pair + t) * C::kMatrixBytes;
    // Matrix 2m + half of codes i of the bytes that `upper` selects, m = first + i.
    const auto store = [&](int first, bool upper_of_even, bool upper_of_odd, int begin, int end) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t halves[4];
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const uint4& x = values[kNarrowValues ? 0 : w / 2];
          const uint32_t word = w % 2 ? (half ? x.w : x.z) : (half ? x.y : x.x);
          const bool is_upper = w / 2 ? upper_of_odd : upper_of_even;
          halves[w] = __byte_perm(word, 0, is_upper ? 0x4342 : 0x4140);
        }
#pragma unroll
        for (int i = begin; i < end; ++i) {
          const uint32_t mask = both_halves(((1u << C::kValueBits) - 1) << C::kValueBits * i);
          ptx::store_shared_16(
              row + (2 * (first + i) + half) * C::kValueRow,
              {halves[0] & mask, halves[1] & mask, halves[2] & mask, halves[3] & mask});
        }
      }
    };
    if constexpr (kNarrowValues) {
      part ? store(0, false, true, 2, 4) : store(0, false, true, 0, 2);
    } else if constexpr (C::kValueBits == 2) {
      store(4 * part, part, part, 0, 4);
    } else if constexpr (kValueTiles == 2) {
      store(4 * part, false, false, 0, 2);
      store(4 * part + 2, true, true, 0, 2);
    } else {
      store(2 * part, part, part, 0, 2);
    }
  }
  // Levels of trellis codes: a part has the even or the odd channels of its words, of head size 64
  // half of the bytes of either.
  __device__ __forceinline__ void store_value_levels(uint32_t tile_base, int slab, int lane) const {
    constexpr bool kShared = C::kHeadDim == 64;
    const int g = lane >> 2, t = lane & 3, pair = slab / 2, part = slab % 2;
    const uint32_t row = tile_base + g * 16 + (4 * pair + t) * C::kMatrixBytes;
    uint32_t levels[8];  // of both slabs' tokens 2t, 2t + 1, 2t + 8, 2t + 9
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint4& x = values[kNarrowValues ? 0 : i / 4];
      const uint32_t words[4] = {x.x, x.y, x.z, x.w};
      levels[i] = TrellisParts::of(words[i % 4]).of_parity(kShared ? g & 1 : part);
      if (kShared && part) levels[i] >>= 16;
    }
#pragma unroll
    for (int byte = 0; byte < (kShared ? 2 : 4); ++byte) {
      uint32_t halves[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) halves[w] = byte_pair(levels[2 * w], levels[2 * w + 1], byte);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t mask = both_halves(15u << 4 * i);
        const int matrix = kShared ? 2 * (2 * part + i) + byte : 2 * (2 * byte + i) + part;
        ptx::store_shared_16(row + matrix * C::kValueRow, {halves[0] & mask, halves[1] & mask,
                                                           halves[2] & mask, halves[3] & mask});
      }
    }
  }
};

// Sixty-four exact tokens from `first` on, those below `end`; others are zeros. rows: of token 0's
// place; row_of(token): its row. Values take the weight that codes of their channel have.
template <class C, typename RowOf>
__device__ __forceinline__ void load_exact_tile(const bf16_t* keys, const bf16_t* values,
                                                RowOf row_of, int first, int end, uint32_t stage,
                                                int thread) {
  constexpr int kPieces = C::kHeadDim / 8;
#pragma unroll 1
  for (int i = thread; i < kPageTokens * kPieces; i += C::kGroupThreads) {
    const int token = i / kPieces, piece = i % kPieces, column = column_of_token(token);
    uint4 key = {0, 0, 0, 0}, value = {0, 0, 0, 0};
    if (first + token < end) {
      const std::int64_t at = row_of(first + token) * std::int64_t{C::kHeadDim} + 8 * piece;
      key = *reinterpret_cast<const uint4*>(keys + at);
      value = *reinterpret_cast<const uint4*>(values + at);
    }
    ptx::store_shared_16(
        stage + column / 8 * C::kKeyRow + piece * C::kMatrixBytes + column % 8 * 16, key);
    const uint32_t words[4] = {value.x, value.y, value.z, value.w};
    const uint32_t to = stage + C::kKeyBytes + column / 8 * C::kMatrixBytes + column % 8 * 2;
    const auto store_pairs = [&](auto store) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float unit = __uint_as_float(
            (127u - 24u +
             (C::kTrellis ? C::value_shift(C::value_position(2 * w)) : C::value_shift(8 * piece)))
            << 23);
        const uint32_t scaled =
            ptx::pack_bf16(ptx::low_bf16(words[w]) * unit, ptx::high_bf16(words[w]) * unit);
        store(2 * w, static_cast<uint16_t>(scaled));
        store(2 * w + 1, static_cast<uint16_t>(scaled >> 16));
      }
    };
    if constexpr (C::kTrellis) {
      // Where the first channel of this word's half lies, and the others from there.
      const int first = C::value_position(8 * piece);
      const uint32_t base = to + first / 8 * C::kValueRow + first % 8 * 16;
      store_pairs([&](int c, uint16_t half) {
        const int after = C::value_position(c);
        ptx::store_shared_2(base + after / 8 * C::kValueRow + after % 8 * 16, half);
      });
    } else {
      const uint32_t base = to + piece * C::kValueRow;
      store_pairs([&](int c, uint16_t half) { ptx::store_shared_2(base + c * 16, half); });
    }
  }
}

}  // namespace oscar::cuda::sm90

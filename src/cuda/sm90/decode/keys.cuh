// Logits of a coded page: integer dot products of key bytes with the query's coefficient bytes.
#pragma once

#include "cuda/ptx/memory.h"
#include "cuda/ptx/mma.h"
#include "cuda/sm90/decode/query.cuh"
#include "cuda/trellis_levels.cuh"

namespace oscar::cuda::sm90 {

// logits[slab][half][head tile] of tokens 16·slab + 8·half + g.
template <class C>
using PageLogits = float[4][2][C::kHeadTiles];

__device__ __forceinline__ uint4 masked(uint4 x, uint32_t mask) {
  return {x.x & mask, x.y & mask, x.z & mask, x.w & mask};
}

__device__ __forceinline__ uint4 shifted(uint4 x, int bits) {
  return {x.x >> bits, x.y >> bits, x.z >> bits, x.w >> bits};
}

// Operand plane p of 2-bit codes keeps the lower one or two of each half byte; planes 2 and 3 are
// taken after a shift by 4.
__device__ __forceinline__ uint32_t low_mask(int p) { return p & 1 ? 0x0f0f0f0fu : 0x03030303u; }

// dot[head tile] += levels of trellis codes of one slab and tile.
template <class C>
__device__ __forceinline__ void dot_levels(int (&dot)[C::kHeadTiles][4], uint32_t codes, int slab,
                                           int tile, int lane,
                                           const uint32_t (&query)[C::kHeadTiles][C::kKeyWords]) {
  constexpr int kWords = C::kNarrow ? 2 : 4;
  uint32_t words[4] = {};
  if constexpr (C::kNarrow) {
    const uint2 x = ptx::load_shared_8(codes + ((slab >> 1) * 32 + lane) * 16 + (slab & 1) * 8);
    words[0] = x.x;
    words[1] = x.y;
  } else {
    const uint4 x = ptx::load_shared_16(codes + ((slab * C::kKeyTiles + tile) * 32 + lane) * 16);
    words[0] = x.x;
    words[1] = x.y;
    words[2] = x.z;
    words[3] = x.w;
  }
  uint32_t levels[2][4] = {};  // of even and odd channels
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const RaisedLevels raised = RaisedLevels::of(words[w]);
    levels[0][w] = raised.even;
    levels[1][w] = raised.odd;
  }
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const uint32_t(&x)[4] = levels[p / 2];
    const uint32_t mask = p & 1 ? ~0u : kLowerLevels;
    const uint4 a = {x[0] & mask, x[1] & mask, x[2] & mask, x[3] & mask};
#pragma unroll
    for (int i = 0; i < C::kHeadTiles; ++i) {
      if constexpr (C::kNarrow) {
        ptx::mma_u8s8_k16(dot[i], a.x, a.y, query[i][p]);
      } else {
        ptx::mma_u8s8_k32(dot[i], a, query[i][2 * p], query[i][2 * p + 1]);
      }
    }
  }
}

// dot[head tile] += low codes of one slab and tile.
template <class C>
__device__ __forceinline__ void dot_low(int (&dot)[C::kHeadTiles][4], uint32_t codes, int slab,
                                        int tile, int lane,
                                        const uint32_t (&query)[C::kHeadTiles][C::kKeyWords]) {
  if constexpr (C::kNarrow) {
    const uint2 x = ptx::load_shared_8(codes + ((slab >> 1) * 32 + lane) * 16 + (slab & 1) * 8);
    const uint2 y = {x.x >> 4, x.y >> 4};
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const uint2 a = p < 2 ? x : y;
#pragma unroll
      for (int i = 0; i < C::kHeadTiles; ++i) {
        ptx::mma_u8s8_k16(dot[i], a.x & low_mask(p), a.y & low_mask(p), query[i][p]);
      }
    }
  } else {
    const uint4 x = ptx::load_shared_16(codes + ((slab * C::kKeyTiles + tile) * 32 + lane) * 16);
    if constexpr (C::kKeyBits == 4) {
#pragma unroll
      for (int i = 0; i < C::kHeadTiles; ++i) {
        ptx::mma_u8s8_k32(dot[i], masked(x, 0x0f0f0f0fu), query[i][0], query[i][1]);
        ptx::mma_u8s8_k32(dot[i], x, query[i][2], query[i][3]);
      }
    } else {
      const uint4 y = shifted(x, 4);
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const uint4 a = masked(p < 2 ? x : y, low_mask(p));
#pragma unroll
        for (int i = 0; i < C::kHeadTiles; ++i) {
          ptx::mma_u8s8_k32(dot[i], a, query[i][2 * p], query[i][2 * p + 1]);
        }
      }
    }
  }
}

// Shared address of a lane's query words for a tile of channels and a tile of heads.
template <class C>
__device__ __forceinline__ uint32_t query_address(const QueryStore<C>& store, int tile,
                                                  int head_tile, int lane) {
  const int index = tile * C::kHeadTiles + head_tile;
  return ptx::shared_address(store.words + (index * 32 + lane) * C::kQueryWords);
}

// dot[head tile] += third bits of one slab and tile. The query words are read again for each slab:
// there are too many to keep.
template <class C>
__device__ __forceinline__ void dot_high(int (&dot)[C::kHeadTiles][4], uint32_t codes, int slab,
                                         int tile, int lane, const QueryStore<C>& store) {
  const uint32_t plane = codes + C::kKeyLowBytes;
  uint2 x, y;  // bits 0–3 and 4–7 of every byte
  if constexpr (C::kHeadDim == 64) {
    // Two bytes a row: the upper half of the operand is their upper four bits.
    const uint32_t both = ptx::load_shared_4(plane + (slab * 32 + lane) * 4);
    x = {__byte_perm(both, both >> 4, 0x5410), __byte_perm(both, both >> 4, 0x7632)};
    y = x;
  } else {
    x = ptx::load_shared_8(plane + ((slab * C::kChunks + tile) * 32 + lane) * 8);
    y = {x.x >> 4, x.y >> 4};
  }
#pragma unroll
  for (int i = 0; i < C::kHeadTiles; ++i) {
    const uint32_t query = query_address(store, tile, i, lane) + 4 * C::kKeyWords;
    const uint4 q = ptx::load_shared_16(query);
    if constexpr (C::kHighPlanes == 4) {
      ptx::mma_u8s8_k16(dot[i], x.x & 0x01010101u, x.y & 0x01010101u, q.x);
      ptx::mma_u8s8_k16(dot[i], x.x & 0x03030303u, x.y & 0x03030303u, q.y);
      ptx::mma_u8s8_k16(dot[i], x.x & 0x07070707u, x.y & 0x07070707u, q.z);
      ptx::mma_u8s8_k16(dot[i], x.x & 0x0f0f0f0fu, x.y & 0x0f0f0f0fu, q.w);
    } else {
      // Planes p and p + 4 share an instruction.
      const uint4 both = {x.x, x.y, y.x, y.y}, r = ptx::load_shared_16(query + 16);
      ptx::mma_u8s8_k32(dot[i], masked(both, 0x01010101u), q.x, r.x);
      ptx::mma_u8s8_k32(dot[i], masked(both, 0x03030303u), q.y, r.y);
      ptx::mma_u8s8_k32(dot[i], masked(both, 0x07070707u), q.z, r.z);
      ptx::mma_u8s8_k32(dot[i], masked(both, 0x0f0f0f0fu), q.w, r.w);
    }
  }
}

// Scale and zero point of tokens g and g + 8 of a slab.
struct TokenScales {
  float scale[2], zero[2];
};

template <bool kAffine>
__device__ __forceinline__ TokenScales load_scales(uint32_t metadata_of_g, int slab) {
  if constexpr (kAffine) {
    const uint2 x = ptx::load_shared_8(metadata_of_g + slab * 64);
    return {{ptx::low_bf16(x.x), ptx::low_bf16(x.y)}, {ptx::high_bf16(x.x), ptx::high_bf16(x.y)}};
  } else {
    const uint32_t x = ptx::load_shared_4(metadata_of_g + slab * 32);
    return {{ptx::low_bf16(x), ptx::high_bf16(x)}, {0.0f, 0.0f}};
  }
}

// Logits in log2 units relative to `max`. codes, metadata: the page's key plane in shared memory.
template <class C>
__device__ __forceinline__ void page_logits(PageLogits<C>& logits, uint32_t codes,
                                            uint32_t metadata, int group_stride,
                                            const QueryStore<C>& store,
                                            const float (&max)[C::kHeadTiles], int lane) {
  const int g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int chunk = 0; chunk < C::kChunks; ++chunk) {
    uint32_t query[C::kKeyTilesPerChunk][C::kHeadTiles][C::kKeyWords];
    float code_sum[C::kHeadTiles], row_scale[C::kHeadTiles];
#pragma unroll
    for (int i = 0; i < C::kHeadTiles; ++i) {
#pragma unroll
      for (int tile = 0; tile < C::kKeyTilesPerChunk; ++tile) {
        const uint32_t address = query_address(store, chunk * C::kKeyTilesPerChunk + tile, i, lane);
#pragma unroll
        for (int w = 0; w < C::kKeyWords; w += 4) {
          const uint4 x = ptx::load_shared_16(address + 4 * w);
          query[tile][i][w] = x.x;
          query[tile][i][w + 1] = x.y;
          query[tile][i][w + 2] = x.z;
          query[tile][i][w + 3] = x.w;
        }
      }
      row_scale[i] = store.scales[i * 4 + t];
      code_sum[i] = store.code_sums[(i * 4 + t) * C::kChunks + chunk];
      if constexpr (!C::kAffine) code_sum[i] *= C::kKeyCentre;
    }
#pragma unroll
    for (int slab = 0; slab < 4; ++slab) {
      int dot[C::kHeadTiles][4] = {}, high[C::kHeadTiles][4] = {};
#pragma unroll
      for (int tile = 0; tile < C::kKeyTilesPerChunk; ++tile) {
        const int all = chunk * C::kKeyTilesPerChunk + tile;
        if constexpr (C::kTrellis) {
          dot_levels<C>(dot, codes, slab, all, lane, query[tile]);
        } else {
          dot_low<C>(dot, codes, slab, all, lane, query[tile]);
        }
        if constexpr (C::kKeyBits == 3) dot_high<C>(high, codes, slab, all, lane, store);
      }
      const TokenScales scales =
          load_scales<C::kAffine>(metadata + g * (C::kAffine ? 8 : 4) + chunk * group_stride, slab);
#pragma unroll
      for (int i = 0; i < C::kHeadTiles; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          int units = dot[i][2 * half] * 256 + dot[i][2 * half + 1];
          if constexpr (C::kKeyBits == 3) {
            units += 4 * (high[i][2 * half] * 256 + high[i][2 * half + 1]);
          }
          const float centred =
              C::kAffine ? fmaf(-scales.zero[half], code_sum[i], static_cast<float>(units))
                         : static_cast<float>(units) - code_sum[i];
          logits[slab][half][i] = fmaf(scales.scale[half] * row_scale[i], centred,
                                       chunk == 0 ? -max[i] : logits[slab][half][i]);
        }
      }
    }
  }
}

}  // namespace oscar::cuda::sm90

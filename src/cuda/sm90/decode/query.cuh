// Query rows of a block: BF16 rows for exact tokens, and 16-bit integers split into signed byte
// pairs for the codes. The BF16 rows are those that the integers are made of, until raw ones take
// their place (AttendParams::raw_q).
//
// A key byte x holds codes c_p at weights 4^p. Masking x to its low p + 1 codes costs one operation
// a word and gives M_p = Σ_{i≤p} c_i·4^i, so with B_p = Q_p − Q_{p+1} and Q_p = round(q·S/4^p): Σ_p
// M_p·B_p = Σ_p c_p·q·S. Only two neighbouring codes share such a chain: the upper two are shifted
// down first, which keeps Q_p at S/4 and better.
#pragma once

#include "cuda/ptx/memory.h"
#include "cuda/ptx/scalar.h"
#include "cuda/sm90/decode/config.h"
#include "cuda/sm90/decode/schedule.cuh"

namespace oscar::cuda::sm90 {

// Operand plane p of the low codes: its weight against S, and whether plane p + 1 continues the
// chain. Of trellis codes: the lower and upper levels in half bytes, of even channels (planes 0, 1)
// and of odd ones (2, 3).
template <class C>
struct LowPlanes {
  static __device__ __forceinline__ float weight(int p) {
    if (C::kTrellis) return p & 1 ? 1.0f / 16 : 1.0f;
    return C::kKeyBits == 4 ? (p ? 1.0f / 16 : 1.0f) : (p & 1) ? 0.25f : 1.0f;
  }
  static __device__ __forceinline__ bool chained(int p) { return (p & 1) == 0; }
  // Channel of plane p in byte b of the k half h, for lane quarter t.
  static __device__ __forceinline__ int channel(int tile, int p, int h, int b, int t) {
    if (C::kTrellis) return tile * C::kKeyTileDim + trellis_key_channel(p, h, b, t);
    const int n = C::kNarrow ? 2 * p + (b >> 1) : 4 * p + 2 * h + (b >> 1);
    return tile * C::kKeyTileDim + 8 * n + 2 * t + (b & 1);
  }
  static __device__ __forceinline__ int plane_of(int channel) {
    if (C::kTrellis) return channel / 2 % 2 + channel % 2 * 2;
    return channel % C::kKeyTileDim / (C::kNarrow ? 16 : 32);
  }
};

// Plane p of the third bits; chains of four bits.
template <class C>
struct HighPlanes {
  static __device__ __forceinline__ float weight(int p) { return 1.0f / (1 << (p & 3)); }
  static __device__ __forceinline__ bool chained(int p) { return (p & 3) != 3; }
  static __device__ __forceinline__ int channel(int tile, int p, int b, int t) {
    if (C::kHeadDim == 64) return 8 * ((b >> 1) * 4 + p) + 2 * t + (b & 1);
    return tile * 128 + 8 * (2 * p + (b >> 1)) + 2 * t + (b & 1);
  }
};

// Shared memory of the query of one block of rows.
template <class C>
struct QueryStore {
  uint8_t* rows;     // [kRows][kQueryRowBytes] BF16
  uint32_t* words;   // [kKeyTiles][kHeadTiles][32 lanes][kQueryWords]
  float* units;      // [kRows] integer units of q = 1
  float* scales;     // [kRows] logit, in log2 units, of one integer unit
  float* code_sums;  // [kRows][kChunks] Σ of the integer queries, in the same units
};

__device__ __forceinline__ int rounded(float x) { return __float2int_rn(x); }

// Byte `high ? high : low` of a 16-bit coefficient split as 256·high + low, both signed.
__device__ __forceinline__ uint32_t byte_of(int coefficient, bool low) {
  const int high = (coefficient + 128) >> 8;
  return static_cast<uint32_t>(low ? coefficient - 256 * high : high) & 255u;
}

// One query row in a warp's registers. Rows of padding are zero.
template <class C>
struct QueryRow {
  uint32_t pair[C::kHeadDim / 64];

  __device__ __forceinline__ void load(const AttendParams& params, const Segment& segment, int row,
                                       int lane) {
    load_from(params.q, params.q_token_stride, params, segment, row, lane);
  }
  __device__ __forceinline__ void load_raw(const AttendParams& params, const Segment& segment,
                                           int row, int lane) {
    load_from(params.raw_q, params.raw_q_token_stride, params, segment, row, lane);
  }
  // Into a row of QueryStore.
  __device__ __forceinline__ void put(const QueryStore<C>& store, int row, int lane) const {
    uint32_t* words = reinterpret_cast<uint32_t*>(store.rows + row * C::kQueryRowBytes);
#pragma unroll
    for (int i = 0; i < C::kHeadDim / 64; ++i) words[i * 32 + lane] = pair[i];
  }

 private:
  __device__ __forceinline__ void load_from(const bf16_t* q, std::int64_t token_stride,
                                            const AttendParams& params, const Segment& segment,
                                            int row, int lane) {
    const RowPlace place = RowPlace::of(params, segment, C::kRows, row);
    const bool is_row = place.is_valid && row < C::kRows;
    const uint32_t* source = reinterpret_cast<const uint32_t*>(q + place.token * token_stride +
                                                               place.q_head * C::kHeadDim);
#pragma unroll
    for (int i = 0; i < C::kHeadDim / 64; ++i) pair[i] = is_row ? source[i * 32 + lane] : 0u;
  }
};

// Row `row`'s BF16 values into shared memory, its units and sums; one warp a row. q null: a row of
// zeros.
template <class C>
__device__ __forceinline__ void stage_query_row(const QueryStore<C>& store, int row,
                                                const QueryRow<C>& q, float scale_log2, int lane) {
  const uint32_t(&pair)[C::kHeadDim / 64] = q.pair;
  q.put(store, row, lane);
  float largest = 1e-20f;
#pragma unroll
  for (int i = 0; i < C::kHeadDim / 64; ++i) {
    largest = fmaxf(largest, fmaxf(fabsf(ptx::low_bf16(pair[i])), fabsf(ptx::high_bf16(pair[i]))));
  }
#pragma unroll
  for (int o = 1; o < 32; o <<= 1) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, o));
  const float units = C::kQueryRange / largest;
#pragma unroll
  for (int chunk = 0; chunk < C::kChunks; ++chunk) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < C::kChunkDim / 64; ++i) {
      const int index = chunk * (C::kChunkDim / 64) + i;
      const float w = LowPlanes<C>::weight(LowPlanes<C>::plane_of((index * 32 + lane) * 2));
      sum += (rintf(ptx::low_bf16(pair[index]) * (units * w)) +
              rintf(ptx::high_bf16(pair[index]) * (units * w))) /
             w;
    }
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) sum += __shfl_xor_sync(~0u, sum, o);
    if (lane == 0) store.code_sums[row * C::kChunks + chunk] = sum;
  }
  if (lane == 0) {
    store.units[row] = units;
    store.scales[row] = scale_log2 / units;
  }
}

// The coefficient bytes of all rows, one word a thread and step. After stage_query_row and a
// barrier.
template <class C>
__device__ __forceinline__ void build_query_words(const QueryStore<C>& store, int thread) {
  constexpr int kWords = C::kKeyTiles * C::kHeadTiles * 32 * C::kQueryWords;
#pragma unroll 1
  for (int index = thread; index < kWords; index += C::kThreads) {
    const int word = index % C::kQueryWords, lane = index / C::kQueryWords % 32;
    const int tile_pair = index / (C::kQueryWords * 32);
    const int head_tile = tile_pair % C::kHeadTiles, tile = tile_pair / C::kHeadTiles;
    const int column = lane >> 2, t = lane & 3, row = head_tile * 4 + (column >> 1);
    const uint16_t* q = reinterpret_cast<const uint16_t*>(store.rows + row * C::kQueryRowBytes);
    const float units = store.units[row];
    const auto value = [&](int channel) { return ptx::low_bf16(q[channel]) * units; };
    uint32_t packed = 0;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      int coefficient;
      if (word < C::kKeyWords) {
        using P = LowPlanes<C>;
        const int p = C::kNarrow ? word : word >> 1, h = C::kNarrow ? 0 : word & 1;
        coefficient = rounded(value(P::channel(tile, p, h, b, t)) * P::weight(p));
        if (P::chained(p)) {
          coefficient -= rounded(value(P::channel(tile, p + 1, h, b, t)) * P::weight(p + 1));
        }
      } else {
        using P = HighPlanes<C>;
        const int p = word - C::kKeyWords;
        coefficient = rounded(value(P::channel(tile, p, b, t)) * P::weight(p));
        if (P::chained(p)) {
          coefficient -= rounded(value(P::channel(tile, p + 1, b, t)) * P::weight(p + 1));
        }
      }
      packed |= byte_of(coefficient, column & 1) << (8 * b);
    }
    store.words[index] = packed;
  }
}

}  // namespace oscar::cuda::sm90

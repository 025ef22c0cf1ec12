// Query rows of a block: which they are, what they may see, and as operands in shared memory.
#pragma once

#include "cuda/ptx/memory.h"
#include "cuda/ptx/scalar.h"
#include "cuda/sm90/decode/schedule.cuh"
#include "cuda/sm90/prefill/config.h"

namespace oscar::cuda::sm90 {

// Row r is query (first + r) / ratio of the sequence, head (first + r) % ratio of the KV head.
struct PrefillRows {
  const AttendParams& params;
  int seq, head, first, length;

  __device__ __forceinline__ int count() const {  // of the item; rows from `first` on are here
    return params.num_queries * params.q_heads_per_kv_head;
  }
  __device__ __forceinline__ bool is_valid(int row) const { return first + row < count(); }
  __device__ __forceinline__ int query(int row) const {
    return smaller(first + row, count() - 1) / params.q_heads_per_kv_head;
  }
  __device__ __forceinline__ int position(int row) const {
    return length - params.num_queries + query(row);
  }
  __device__ __forceinline__ std::int64_t token(int row) const {
    return std::int64_t{seq} * params.num_queries + query(row);
  }
  __device__ __forceinline__ int q_head(int row) const {
    return head * params.q_heads_per_kv_head + (first + row) % params.q_heads_per_kv_head;
  }
  // The block's part of the sequence, as if its rows were all: exact tiles are cut from it.
  __device__ __forceinline__ WindowRules rules(int num_rows) const {
    WindowRules rules = window_rules(params);
    rules.num_queries = query(num_rows - 1) - query(0) + 1;
    return rules;
  }
};

// Tiles of a block in order: coded pages, sinks by 64, recent tokens by 64.
struct PrefillTiles {
  SequenceUnits units;
  int num_sink, num_recent;
  TokenRange clean;  // every row reads these as codes

  static __device__ __forceinline__ PrefillTiles of(const PrefillRows& rows, bool has_copies,
                                                    int num_rows) {
    const WindowRules rules = rows.rules(num_rows);
    const int length = rows.position(num_rows - 1) + 1;
    PrefillTiles tiles{sequence_units(rules, has_copies, length), 0, 0, {}};
    const auto tiles_of = [](int units) {
      return (units * kExactUnit + kPageTokens - 1) / kPageTokens;
    };
    tiles.num_sink = tiles_of(tiles.units.num_sink);
    tiles.num_recent = tiles_of(tiles.units.num_recent);
    const WindowRules all = window_rules(rows.params);
    tiles.clean = {coded_tokens(all, has_copies, length - 1).begin,
                   coded_tokens(all, has_copies, rows.position(0)).end};
    return tiles;
  }
  __device__ __forceinline__ int count() const { return units.num_coded + num_sink + num_recent; }
  // Tokens of an exact tile; tile counts from the first of them.
  __device__ __forceinline__ TokenRange exact_tokens(const WindowRules& rules, int tile) const {
    const bool is_sink = tile < num_sink;
    const int begin = is_sink ? units.sink_begin + tile * kPageTokens
                              : units.recent_begin + (tile - num_sink) * kPageTokens;
    const int limit = is_sink ? smaller(rules.sink_tokens, units.length) : units.length;
    return {begin, smaller(begin + kPageTokens, limit)};
  }
};

// Queries in shared memory: float16 in the order and at the weights of the codes, times a power of
// two so that the block's largest lies in [2^13, 2^14) (BF16 values are exact there, but for those
// 2^−21 of the largest and less), and BF16 for exact tokens, raw where such are given. Returns what
// a product with codes is multiplied by. By the whole block; ends with a barrier.
template <class C>
__device__ __forceinline__ float stage_queries(const PrefillRows& rows, std::uint8_t* shared,
                                               int num_rows) {
  const AttendParams& params = rows.params;
  const int thread = threadIdx.x, lane = thread & 31;
  uint32_t* largest = reinterpret_cast<uint32_t*>(shared + C::kWords);
  if (thread == 0) *largest = 0;
  __syncthreads();
  constexpr int kPieces = C::kHeadDim / 8;
  uint32_t most = 0;
  for (int i = thread; i < C::kRows * kPieces; i += C::kThreads) {
    const int row = i / kPieces, piece = i % kPieces;
    uint4 x = {0, 0, 0, 0};
    if (row < num_rows) {
      x = *reinterpret_cast<const uint4*>(params.q + rows.token(row) * params.q_token_stride +
                                          rows.q_head(row) * C::kHeadDim + 8 * piece);
    }
    *reinterpret_cast<uint4*>(shared + C::kExactQueries + row * C::kQueryRowBytes + 16 * piece) = x;
    for (const uint32_t w : {x.x, x.y, x.z, x.w}) {
      most = max(most, max(w << 16 & 0x7fff0000u, w & 0x7fff0000u));
    }
  }
  atomicMax(largest, most);
  __syncthreads();
  const int exponent = smaller(larger(static_cast<int>(*largest >> 23), 40), 214);
  const float factor = __uint_as_float(static_cast<uint32_t>(127 + 140 - exponent) << 23);
  for (int row = thread / 32; row < C::kRows; row += C::kThreads / 32) {
    const std::uint16_t* exact =
        reinterpret_cast<const std::uint16_t*>(shared + C::kExactQueries + row * C::kQueryRowBytes);
    std::uint16_t* coded =
        reinterpret_cast<std::uint16_t*>(shared + C::kCodedQueries + row * C::kQueryRowBytes);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < C::kHeadDim / 32; ++i) {
      const KeyElement element = key_element<C>(32 * i + lane);
      const float weight = static_cast<float>(1 << element.shift);
      const uint32_t half =
          ptx::f16_from_float(ptx::low_bf16(exact[element.channel]) * (factor * (1.0f / weight)));
      coded[32 * i + lane] = static_cast<std::uint16_t>(half);
      sum += ptx::float_from_f16(half) * weight;
    }
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) sum += __shfl_xor_sync(~0u, sum, o);
    if (lane == 0) reinterpret_cast<float*>(shared + C::kQuerySums)[row] = sum * 0x1p-24f;
  }
  __syncthreads();
  if (params.raw_q != nullptr) {
    for (int i = thread; i < num_rows * kPieces; i += C::kThreads) {
      const int row = i / kPieces, piece = i % kPieces;
      *reinterpret_cast<uint4*>(shared + C::kExactQueries + row * C::kQueryRowBytes + 16 * piece) =
          *reinterpret_cast<const uint4*>(params.raw_q +
                                          rows.token(row) * params.raw_q_token_stride +
                                          rows.q_head(row) * C::kHeadDim + 8 * piece);
    }
    __syncthreads();
  }
  return 0x1p24f / factor;
}

}  // namespace oscar::cuda::sm90

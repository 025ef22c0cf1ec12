// Rows to pages: mean, transform, clip, quantize, pack, store by slot; exact copies in the same
// pass.
//
// A block takes kTileTokens tokens of one head and side. The transform sums in the CPU's order
// (channel ascending, product then sum), so that a token's bytes are the CPU's and depend on
// nothing but its row.
#pragma once

#include "cuda/encode/quantizer.cuh"
#include "cuda/encode/trellis_search.cuh"
#include "cuda/encode_params.h"

namespace oscar::cuda::encode {

inline constexpr int kTileTokens = 32, kThreads = 128;

// Shared memory: raw rows [kMaxDim][kTileTokens] (transposed: a broadcast serves all tokens),
// rotated rows [kTileTokens][kMaxDim + 8], codes [kTileTokens][kMaxDim].
template <int kMaxDim>
struct Tile {
  static constexpr int kStride = kMaxDim + 8;
  static constexpr int kRawStride = kTileTokens + 4;
  float raw[kMaxDim][kRawStride];
  float rotated[kTileTokens][kStride];
  std::uint8_t codes[kTileTokens][kMaxDim];
};

struct TileJob {
  const EncodeParams& params;
  const EncodeSide& side;
  int head, side_index, num_tokens;
  std::int64_t first_token;
};

__device__ __forceinline__ float widened(bf16_t bits) {
  return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}

// Channel c of the mean as it stands at a token: rotated to its position when the mean is from
// before RoPE.
__device__ __forceinline__ float mean_at(const TileJob& job, std::int64_t token, int channel) {
  const EncodeParams& p = job.params;
  const float* mean = job.side.mean + job.head * job.side.plane.head_dim;
  if (job.side_index != 0 || p.num_pairs == 0 || channel >= 2 * p.num_pairs) return mean[channel];
  const bool is_second = p.interleaved ? channel & 1 : channel >= p.num_pairs;
  const int f = p.interleaved ? channel / 2 : channel - (is_second ? p.num_pairs : 0);
  const int first = p.interleaved ? 2 * f : f, second = p.interleaved ? 2 * f + 1 : f + p.num_pairs;
  const int position = p.positions[token];
  const float* lo = p.rope_tile + (position % kPageTokens * p.num_pairs + f) * 2;
  const float* hi = p.rope_start + (std::int64_t{position / kPageTokens} * p.num_pairs + f) * 2;
  const float cosine = lo[0] * hi[0] - lo[1] * hi[1], sine = lo[1] * hi[0] + lo[0] * hi[1];
  return is_second ? mean[first] * sine + mean[second] * cosine
                   : mean[first] * cosine - mean[second] * sine;
}

// Eight channels of a token a thread and step, neighbouring threads neighbouring tokens: shared
// memory is written without conflicts.
template <int kMaxDim>
__device__ __forceinline__ void load_rows(const TileJob& job, Tile<kMaxDim>& tile,
                                          bool subtract_mean) {
  const int head_dim = job.side.plane.head_dim;
  for (int i = threadIdx.x; i < kTileTokens * (head_dim / 8); i += kThreads) {
    const int token = i % kTileTokens, channel = i / kTileTokens * 8;
    const std::int64_t t = job.first_token + token;
    uint4 packed = {0, 0, 0, 0};
    if (token < job.num_tokens) {
      packed = __ldcs(reinterpret_cast<const uint4*>(job.side.rows + t * job.side.token_stride +
                                                     job.head * job.side.head_stride + channel));
    }
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      float x = widened(static_cast<bf16_t>(words[c / 2] >> (16 * (c % 2))));
      if (subtract_mean && token < job.num_tokens) x = __fsub_rn(x, mean_at(job, t, channel + c));
      tile.raw[channel + c][token] = x;
    }
  }
}

template <int kMaxDim>
__device__ __forceinline__ void transform_rows(const TileJob& job, Tile<kMaxDim>& tile) {
  const int head_dim = job.side.plane.head_dim;
  for (int column = threadIdx.x; column < head_dim; column += kThreads) {
    float sums[kTileTokens] = {};
    if (job.side.transform == nullptr) {
#pragma unroll
      for (int token = 0; token < kTileTokens; ++token) sums[token] = tile.raw[column][token];
    } else {
      const float* matrix =
          job.side.transform + std::int64_t{job.head} * head_dim * head_dim + column;
#pragma unroll 2
      for (int i = 0; i < head_dim; ++i) {
        const float m = __ldg(matrix + std::int64_t{i} * head_dim);
        const float4* x = reinterpret_cast<const float4*>(tile.raw[i]);
#pragma unroll
        for (int quad = 0; quad < kTileTokens / 4; ++quad) {
          const float4 v = x[quad];
          sums[4 * quad] = __fadd_rn(sums[4 * quad], __fmul_rn(v.x, m));
          sums[4 * quad + 1] = __fadd_rn(sums[4 * quad + 1], __fmul_rn(v.y, m));
          sums[4 * quad + 2] = __fadd_rn(sums[4 * quad + 2], __fmul_rn(v.z, m));
          sums[4 * quad + 3] = __fadd_rn(sums[4 * quad + 3], __fmul_rn(v.w, m));
        }
      }
    }
#pragma unroll
    for (int token = 0; token < kTileTokens; ++token) tile.rotated[token][column] = sums[token];
  }
}

// Where a token's bytes go; null: nowhere.
__device__ __forceinline__ std::uint8_t* plane_of(const TileJob& job, std::int64_t slot) {
  if (slot < 0) return nullptr;
  const EncodeParams& p = job.params;
  const auto page = static_cast<std::int64_t>(static_cast<std::uint64_t>(slot) / kPageTokens);
  return p.pages + page * p.page_stride_bytes + job.head * p.head_stride_bytes +
         job.side.plane_offset_bytes;
}

__device__ __forceinline__ void store_half(std::uint8_t* p, std::uint32_t bits) {
  *reinterpret_cast<std::uint16_t*>(p) = static_cast<std::uint16_t>(bits);
}

// Quantizes the tile's rows, eight lanes a row: codes to shared memory, scales to the pages.
template <int kMaxDim, bool kWhole>
__device__ __forceinline__ void quantize_rows(const TileJob& job, Tile<kMaxDim>& tile) {
  constexpr int kPerLane = kMaxDim / kRowLanes;
  const DevicePlane& plane = job.side.plane;
  const RowRules rules{plane.bits,   plane.head_dim,     plane.group_size,
                       plane.affine, job.side.scale_fit, job.side.clip_ratio[job.head],
                       false};
  const int lane = threadIdx.x % kRowLanes;
  for (int row = threadIdx.x / kRowLanes; row < kTileTokens; row += kThreads / kRowLanes) {
    RowQuantizer<kPerLane, kWhole> quantizer{rules, {}};
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      quantizer.y[i] = quantizer.has(i) ? tile.rotated[row][i * kRowLanes + lane] : 0.0f;
    }
    const bool is_finite = quantizer.make_finite();
    const float threshold = quantizer.clip_threshold();
    const std::int64_t slot = row < job.num_tokens ? job.params.slots[job.first_token + row] : -1;
    std::uint8_t* base = plane_of(job, slot);
    if (!is_finite && lane == 0 && base != nullptr && job.params.non_finite != nullptr) {
      *job.params.non_finite = 1;
    }
    const int token = static_cast<int>(slot % kPageTokens);
    std::uint8_t codes[kPerLane];
    for (int group = 0; group < (kWhole ? 1 : plane.num_groups()); ++group) {
      const std::uint32_t scale_zero = quantizer.quantize_group(group, threshold, codes);
      if (base == nullptr || lane != 0) continue;
      store_half(base + plane.scale_offset(group, token), scale_zero);
      if (plane.affine) store_half(base + plane.zero_offset(group, token), scale_zero >> 16);
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (quantizer.has(i)) tile.codes[row][i * kRowLanes + lane] = codes[i];
    }
  }
}

// The same of trellis codes, and their words to the pages. Positions, words and scales lie where
// the raw rows were. Ends with a barrier.
template <int kMaxDim, bool kWhole>
__device__ __forceinline__ void quantize_trellis_rows(const TileJob& job, Tile<kMaxDim>& tile) {
  constexpr int kPerLane = kMaxDim / kRowLanes, kMostWords = kMaxDim / kTrellisChannels;
  static_assert(sizeof tile.raw >= 4 * kTileTokens * kMostWords * (kTrellisStride + 1));
  const DevicePlane& plane = job.side.plane;
  const RowRules rules{plane.bits, plane.head_dim,     plane.group_size,
                       false,      job.side.scale_fit, job.side.clip_ratio[job.head],
                       true};
  float* words = tile.raw[0];
  float* scales = words + kTileTokens * kMostWords * kTrellisStride;
  const int lane = threadIdx.x % kRowLanes, num_words = plane.head_dim / kTrellisChannels;
  const int per_lane = plane.group_size / kRowLanes, num_groups = kWhole ? 1 : plane.num_groups();
  // Channel 8i + lane of a row.
  const auto word_of = [&](int row, int i) { return row * num_words + i / 2; };
  const auto slot_of = [&](int row) {
    return row < job.num_tokens ? job.params.slots[job.first_token + row] : -1;
  };
  const auto for_each_row = [&](auto f) {
    for (int row = threadIdx.x / kRowLanes; row < kTileTokens; row += kThreads / kRowLanes) {
      RowQuantizer<kPerLane, kWhole> quantizer{rules, {}};
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        quantizer.y[i] = quantizer.has(i) ? tile.rotated[row][i * kRowLanes + lane] : 0.0f;
      }
      const bool is_finite = quantizer.make_finite();
      f(row, quantizer, is_finite);
    }
  };
  for_each_row([&](int row, const auto& quantizer, bool is_finite) {
    const float threshold = quantizer.clip_threshold();
    if (!is_finite && lane == 0 && slot_of(row) >= 0 && job.params.non_finite != nullptr) {
      *job.params.non_finite = 1;
    }
    for (int group = 0; group < num_groups; ++group) {
      const int first = group * per_lane, end = first + per_lane;
      const float scale =
          quantizer.choose_scale(first, end, threshold, quantizer.largest_magnitude(first, end))
              .scale;
      if (lane == 0) scales[row * kMostWords + group] = scale;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if (!quantizer.has(i) || !quantizer.within(i, first, end)) continue;
        const float clipped = fminf(fmaxf(quantizer.y[i], -threshold), threshold);
        words[word_of(row, i) * kTrellisStride + i % 2 * 8 + lane] =
            __fadd_rn(__fdiv_rn(clipped, scale == 0 ? 1.0f : scale), 3.5f);
      }
    }
  });
  __syncthreads();
  for (int word = threadIdx.x; word < kTileTokens * num_words; word += kThreads) {
    search_word(words, word);
    const int row = word / num_words;
    const std::int64_t slot = slot_of(row);
    std::uint8_t* base = plane_of(job, slot);
    if (base == nullptr) continue;
    const int at = plane.trellis_word(static_cast<int>(slot % kPageTokens), word % num_words);
    *reinterpret_cast<std::uint32_t*>(base + at) = codes_of_word(words, word);
  }
  __syncthreads();
  for_each_row([&](int row, const auto& quantizer, bool) {
    const std::int64_t slot = slot_of(row);
    std::uint8_t* base = plane_of(job, slot);
    for (int group = 0; group < num_groups; ++group) {
      const int first = group * per_lane, end = first + per_lane;
      float scale = scales[row * kMostWords + group];
      if (rules.fit != ScaleFit::kPlain) {
        scale = quantizer.fitted(first, end, scale, [&](int i) {
          return centred_level(codes_of_word(words, word_of(row, i)), i % 2 * 8 + lane);
        });
      }
      if (base == nullptr || lane != 0) continue;
      store_half(base + plane.scale_offset(group, static_cast<int>(slot % kPageTokens)),
                 __float_as_uint(scale) >> 16);
    }
  });
  __syncthreads();
}

// Composes every byte of every token and stores it: bytes hold codes of one token alone. Given the
// shape at compile time, places are a few shifts.
template <int kMaxDim>
__device__ __forceinline__ void store_bytes(const TileJob& job, const Tile<kMaxDim>& tile,
                                            const DevicePlane& plane) {
  const int low_bytes = plane.low_bytes_per_token();
  const int bytes = low_bytes + plane.high_bytes_per_token();
  for (int i = threadIdx.x; i < kTileTokens * bytes; i += kThreads) {
    const int row = i / bytes, k = i % bytes;
    if (row >= job.num_tokens) break;
    const std::int64_t slot = job.params.slots[job.first_token + row];
    std::uint8_t* base = plane_of(job, slot);
    if (base == nullptr) continue;
    const int token = static_cast<int>(slot % kPageTokens);
    std::uint32_t byte = 0;
    CodePlace place;
    if (k < low_bytes) {
      const int first = DevicePlane::first_channel(k, plane.low_stride(), plane.codes_per_byte());
      const std::uint32_t mask = (1u << plane.low_bits()) - 1;
#pragma unroll
      for (int c = 0; c < plane.codes_per_byte(); ++c) {
        byte |= (tile.codes[row][first + c * plane.low_stride()] & mask) << (plane.low_bits() * c);
      }
      place = plane.low(token, first);
    } else {
      const int first = DevicePlane::first_channel(k - low_bytes, plane.high_stride(), 8);
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        byte |= (tile.codes[row][first + c * plane.high_stride()] >> 2 & 1u) << c;
      }
      place = plane.high(token, first);
    }
    base[place.byte] = static_cast<std::uint8_t>(byte);
  }
}

template <int kMaxDim, int kBits>
__device__ __forceinline__ void store_permuted(const TileJob& job, const Tile<kMaxDim>& tile) {
  if (job.side_index == 0) {
    store_bytes(job, tile, {kMaxDim, kBits, kMaxDim, false, true, Side::kKey});
  } else {
    store_bytes(job, tile, {kMaxDim, kBits, kMaxDim, false, true, Side::kValue});
  }
}

template <int kMaxDim>
__device__ __forceinline__ void store_codes(const TileJob& job, const Tile<kMaxDim>& tile) {
  const DevicePlane& plane = job.side.plane;
  if (!plane.permuted || plane.head_dim != kMaxDim) {
    store_bytes(job, tile, plane);
  } else if (plane.bits == 2) {
    store_permuted<kMaxDim, 2>(job, tile);
  } else if (plane.bits == 4) {
    store_permuted<kMaxDim, 4>(job, tile);
  } else {
    store_permuted<kMaxDim, 3>(job, tile);
  }
}

// Rotated rows as BF16 into the exact copies.
template <int kMaxDim>
__device__ __forceinline__ void store_copies(const TileJob& job, const Tile<kMaxDim>& tile) {
  const EncodeParams& p = job.params;
  const int head_dim = job.side.plane.head_dim;
  for (int i = threadIdx.x; i < job.num_tokens * head_dim; i += kThreads) {
    const int row = i / head_dim, channel = i % head_dim;
    const std::int64_t slot = p.copy_slots[job.first_token + row];
    if (slot < 0) continue;
    const std::int64_t block = slot / p.rows_per_block, copy_row = slot % p.rows_per_block;
    const std::int64_t plane = (block * p.num_kv_heads + job.head) * 2 + job.side_index;
    const float value = tile.rotated[row][channel];
    const bool is_nan = (__float_as_uint(value) & 0x7fffffffu) > 0x7f800000u;
    const std::uint32_t bits = __float_as_uint(round_to_bf16(value));
    p.copies[(plane * p.rows_per_block + copy_row) * head_dim + channel] =
        static_cast<bf16_t>(is_nan ? 0 : bits >> 16);
  }
}

template <int kMaxDim, bool kWhole>
__global__ void __launch_bounds__(kThreads, kMaxDim == 256 ? 2 : 4)
    encode_kernel(const __grid_constant__ EncodeParams params) {
  extern __shared__ __align__(16) std::uint8_t shared[];
  Tile<kMaxDim>& tile = *reinterpret_cast<Tile<kMaxDim>*>(shared);
  const int side_index = blockIdx.z;
  const std::int64_t first = std::int64_t{blockIdx.x} * kTileTokens;
  const TileJob job{params,
                    params.sides[side_index],
                    static_cast<int>(blockIdx.y),
                    side_index,
                    static_cast<int>(min(std::int64_t{kTileTokens}, params.num_tokens - first)),
                    first};
  if (job.side.rows == nullptr) return;
  const bool has_mean = job.side.mean != nullptr;
  load_rows(job, tile, has_mean);
  __syncthreads();
  transform_rows(job, tile);
  __syncthreads();
  if (job.side.plane.trellis) {
    quantize_trellis_rows<kMaxDim, kWhole>(job, tile);
  } else {
    quantize_rows<kMaxDim, kWhole>(job, tile);
    __syncthreads();
    store_codes(job, tile);
  }
  if (params.copies == nullptr || (params.raw_key_copies && side_index == 0)) return;
  bool any_copy = false;
  for (int row = 0; row < job.num_tokens; ++row) {
    any_copy = any_copy || params.copy_slots[first + row] >= 0;
  }
  if (!any_copy) return;
  if (has_mean) {
    // A copy holds the row itself.
    __syncthreads();
    load_rows(job, tile, false);
    __syncthreads();
    transform_rows(job, tile);
    __syncthreads();
  }
  store_copies(job, tile);
}

}  // namespace oscar::cuda::encode

// A page of one head in shared memory as BF16: key codes as small integers (exact) with their
// scales beside, values dequantised; or exact rows.
#pragma once

#include "cuda/attend_params.h"
#include "cuda/attend_units.h"
#include "cuda/sm80/attend/config.h"

namespace oscar::cuda::sm80 {

// Where one (sequence, KV head) finds its data.
struct Source {
  const AttendParams& params;
  int seq, head, length, copy_block;

  __device__ __forceinline__ const std::uint8_t* run(int page) const {
    std::int64_t id = params.block_table[seq * params.block_table_stride + page];
#ifdef OSCAR_CUDA_CHECKED
    if (id < 0 || id >= params.num_pages) {
      atomicExch(params.faults, 1);
      id = 0;
    }
#endif
    return params.pages + id * params.page_stride_bytes + head * params.head_stride_bytes;
  }
  __device__ __forceinline__ const bf16_t* exact(int token, int side) const {
    const ExactCopies& copies = params.copies;
    const int rows = copies.sink_rows + copies.ring_rows;
    const int row = token < copies.sink_rows ? token : copies.sink_rows + token % copies.ring_rows;
    const std::int64_t plane =
        (static_cast<std::int64_t>(copy_block) * params.num_kv_heads + head) * 2 + side;
    return copies.rows + (plane * rows + row) * params.key.head_dim;
  }
};

__device__ __forceinline__ float load_half(const std::uint8_t* p) {
  return __uint_as_float(static_cast<uint32_t>(*reinterpret_cast<const std::uint16_t*>(p)) << 16);
}
__device__ __forceinline__ std::uint16_t bf16_of(float x) {
  const uint32_t bits = __float_as_uint(x);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Tile rows of `stride` halves.
struct Tile {
  std::uint16_t *keys, *values;
  float *scales, *zeros;  // of the keys: [num_groups][64]
  int stride;
};

// The same of trellis codes: their levels.
template <typename Put>
__device__ __forceinline__ void unpack_words(const std::uint8_t* base, const DevicePlane& plane,
                                             int num_valid, Put put) {
  const int words = plane.head_dim / kTrellisChannels;
  for (int i = threadIdx.x; i < kPageTokens * words; i += kThreads) {
    const int token = i / words, word = i % words;
    const bool is_valid = token < num_valid;
    const uint32_t codes =
        is_valid ? *reinterpret_cast<const uint32_t*>(base + plane.trellis_word(token, word)) : 0;
    const uint32_t low = trellis_low_bits(codes);
    for (int t = 0; t < kTrellisChannels; ++t) {
      const uint32_t level = (low >> 2 * t & 3) | (codes >> 2 * t & 2) << 1;
      put(token, word * kTrellisChannels + t, static_cast<int>(level), is_valid);
    }
  }
}

// Codes of one side as numbers through `put(token, channel, code)`, tokens below num_valid; others
// are put as 0.
template <typename Put>
__device__ __forceinline__ void unpack(const std::uint8_t* base, const DevicePlane& plane,
                                       int num_valid, Put put) {
  if (plane.trellis) {
    unpack_words(base, plane, num_valid, put);
    return;
  }
  const int low_bytes = plane.low_bytes_per_token(), per_byte = plane.codes_per_byte();
  const int stride = plane.low_stride(), width = plane.low_bits();
  for (int i = threadIdx.x; i < kPageTokens * low_bytes; i += kThreads) {
    const int token = i / low_bytes;
    const int first = DevicePlane::first_channel(i % low_bytes, stride, per_byte);
    const bool is_valid = token < num_valid;
    const int byte = is_valid ? base[plane.low(token, first).byte] : 0;
    for (int c = 0; c < per_byte; ++c) {
      const int channel = first + c * stride;
      int code = (byte >> (width * c)) & ((1 << width) - 1);
      if (plane.bits == 3 && is_valid) {
        const CodePlace place = plane.high(token, channel);
        code += ((base[place.byte] >> place.shift) & 1) << 2;
      }
      put(token, channel, code, is_valid);
    }
  }
}

__device__ __forceinline__ void load_coded(const Source& source, int page, const Tile& tile) {
  const AttendParams& params = source.params;
  const std::uint8_t* key_base = source.run(page);
  const std::uint8_t* value_base = key_base + params.key.plane_bytes();
  const int num_valid = source.length - page * kPageTokens;
  unpack(key_base, params.key, num_valid, [&](int token, int channel, int code, bool) {
    tile.keys[token * tile.stride + channel] = bf16_of(static_cast<float>(code));
  });
  const DevicePlane& value = params.value;
  const float centre = value.centre();
  unpack(value_base, value, num_valid, [&](int token, int channel, int code, bool is_valid) {
    float x = 0;
    if (is_valid) {
      const int group = channel / value.group_size;
      const float scale = load_half(value_base + value.scale_offset(group, token));
      const float zero =
          value.affine ? load_half(value_base + value.zero_offset(group, token)) : centre;
      x = scale * (static_cast<float>(code) - zero);
    }
    tile.values[token * tile.stride + channel] = bf16_of(x);
  });
  const DevicePlane& key = params.key;
  for (int i = threadIdx.x; i < key.num_groups() * kPageTokens; i += kThreads) {
    const int group = i / kPageTokens, token = i % kPageTokens;
    const bool is_valid = token < num_valid;
    tile.scales[i] = is_valid ? load_half(key_base + key.scale_offset(group, token)) : 0.0f;
    tile.zeros[i] = !is_valid    ? 0.0f
                    : key.affine ? load_half(key_base + key.zero_offset(group, token))
                                 : key.centre();
  }
}

// Rows that some query of the block may read exactly; the others are zero.
__device__ __forceinline__ void load_exact(const Source& source, const WindowRules& rules, int page,
                                           const Tile& tile) {
  const int quads = source.params.key.head_dim / 4;
  const int first = larger(0, source.length - rules.num_queries);
  for (int i = threadIdx.x; i < kPageTokens * quads; i += kThreads) {
    const int row = i / quads, channel = i % quads * 4, token = page * kPageTokens + row;
    const bool is_held =
        token < source.length && (token < rules.sink_tokens || token > first - rules.recent_tokens);
    uint2 key = {0, 0}, value = {0, 0};
    if (is_held) {
      key = *reinterpret_cast<const uint2*>(source.exact(token, 0) + channel);
      value = *reinterpret_cast<const uint2*>(source.exact(token, 1) + channel);
    }
    *reinterpret_cast<uint2*>(tile.keys + row * tile.stride + channel) = key;
    *reinterpret_cast<uint2*>(tile.values + row * tile.stride + channel) = value;
  }
}

}  // namespace oscar::cuda::sm80

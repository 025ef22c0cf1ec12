// Logits of query rows of 16 bits straight on the codes of a page. Included after one ISA header of
// simd/.
//
// The page's codes become bytes once, tokens in lanes and the four channels of a step in the bytes
// of a lane; then every row takes one integer instruction (two without VNNI) for each of its two
// bytes, four channels and kWidth tokens. Sums are exact; what follows is the same sequence of
// roundings in every set.
#pragma once

#include "kernels/codes.h"
#include "kernels/prefetch.h"
#include "kernels/step_sums.h"
#include "kernels/tile_panel.h"

namespace oscar::kernels {
namespace {

constexpr int kStepBytes = 4 * kPageSize;  // of a tile of keys
#ifdef OSCAR_SIMD_SHIFTS_IN_LOOP
constexpr bool kShiftsInLoop = true;
#else
constexpr bool kShiftsInLoop = false;
#endif

// Bits [0, 4) of the four nibbles of half a word to the low halves of four bytes.
inline simd::U spread_nibbles(simd::U half) {
  half = (half | half << 8) & 0x00ff00ffu;
  return (half | half << 4) & 0x0f0f0f0fu;
}

// A column of words, and of half words with the third bits, to the steps that they hold:
// kStepBytes apart from `out` on.
template <int bits>
inline std::uint8_t* unpack_key_word(simd::U low, simd::U third, std::uint8_t* out) {
  constexpr int kLowBits = bits_of_plane(bits);
  constexpr std::uint32_t kMask = bits == 4 ? 0x0f0f0f0fu : 0x03030303u;
  if constexpr (bits == 3) third = spread_nibbles(third) << 2;
  if constexpr (bits == kTrellisCodes) {
    third = low;
    low = trellis_low_bits(low);
  }
#pragma GCC unroll 4
  for (int p = 0; p < 8 / kLowBits; ++p) {
    simd::U codes = (low >> static_cast<std::uint32_t>(kLowBits * p)) & kMask;
    if constexpr (bits == 3) codes |= (third >> static_cast<std::uint32_t>(p)) & 0x04040404u;
    if constexpr (bits == kTrellisCodes) {
      codes |= ((third >> static_cast<std::uint32_t>(2 * p)) & 0x02020202u) << 1;
    }
    simd::store_words(out, codes);
    out += kStepBytes;
  }
  return out;
}

// tile[step][64 tokens]: words of four codes. Columns are read sixteen bytes at a time: up to 12
// bytes past a row's end, which lie inside the plane (its scales follow).
template <int bits>
inline void unpack_keys(const PlaneLayout& layout, const std::uint8_t* plane, int num_blocks,
                        std::uint8_t* tile, Prefetcher& prefetcher) {
  const std::int64_t row_bytes = layout.code_row_bytes();
  const int num_words = layout.head_dim * bits_of_plane(bits) / 32;
  for (int block = 0; block < num_blocks; ++block) {
    const std::uint8_t* const rows = plane + block * simd::kWidth * row_bytes;
    std::uint8_t* out = tile + block * simd::kVectorBytes;
    simd::U third[4] = {};
    for (int w = 0; w < num_words; w += 4) {
      prefetcher.step();
      simd::U low[4];
      simd::load_word_columns(rows + 4 * w, row_bytes, low);
      if constexpr (bits == 3) {
        if (w % 8 == 0) {
          simd::load_word_columns(rows + layout.head_dim / 4 + 2 * w, row_bytes, third);
        } else {
          third[0] = third[2];
          third[1] = third[3];
        }
      }
      const simd::U halves[4] = {third[0] & 0xffffu, third[0] >> 16, third[1] & 0xffffu,
                                 third[1] >> 16};
      if (w + 4 <= num_words) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) out = unpack_key_word<bits>(low[i], halves[i], out);
      } else {
        for (int i = 0; w + i < num_words; ++i) {
          out = unpack_key_word<bits>(low[i], halves[i], out);
        }
      }
    }
  }
}

// words[word][64 tokens]: the words of 2 or 4 bits as they are stored, tokens in lanes.
template <int bits>
inline void transpose_key_words(const PlaneLayout& layout, const std::uint8_t* plane,
                                int num_blocks, std::uint8_t* words, Prefetcher& prefetcher) {
  const std::int64_t row_bytes = layout.code_row_bytes();
  const int num_words = layout.head_dim * bits / 32;
  for (int block = 0; block < num_blocks; ++block) {
    const std::uint8_t* const rows = plane + block * simd::kWidth * row_bytes;
    std::uint8_t* out = words + block * simd::kVectorBytes;
    for (int w = 0; w < num_words; w += 4) {
      prefetcher.step();
      simd::U columns[4];
      simd::load_word_columns(rows + 4 * w, row_bytes, columns);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i, out += kStepBytes) simd::store_words(out, columns[i]);
    }
  }
}

// Where the codes of a row block come from: words whose fields are shifted out in registers, or
// codes in bytes, step by step. A word is kSteps steps.
template <int bits>
struct KeyWords {
  static constexpr int kSteps = 8 / bits;
  static simd::U codes(simd::U word, int step) {
    constexpr std::uint32_t kMask = bits == 4 ? 0x0f0f0f0fu : 0x03030303u;
    return (word >> static_cast<std::uint32_t>(bits * step)) & kMask;
  }
};
struct KeyBytes {
  static constexpr int kSteps = 1;
  static simd::U codes(simd::U word, int) { return word; }
};

// dots[r][v] (+)= Σ over num_steps ≤ a widening's worth of steps, a multiple of Source::kSteps. A
// function of its own, or GCC keeps the totals in registers and spills the sums. q:
// [steps][stride][high 4, low 4].
template <typename Source, int num_rows, int num_vectors>
[[gnu::noinline]] void dot_steps(const std::uint8_t* words, const std::int8_t* q,
                                 std::int64_t q_step_bytes, int num_steps, bool add,
                                 simd::I (*dots)[num_vectors]) {
  simd::ByteSums high_sums[num_rows][num_vectors] = {}, low_sums[num_rows][num_vectors] = {};
  for (int step = 0; step < num_steps; step += Source::kSteps) {
    simd::U word[num_vectors];
#pragma GCC unroll 4
    for (int v = 0; v < num_vectors; ++v) {
      word[v] = simd::load_words(words + v * simd::kVectorBytes);
    }
#pragma GCC unroll 4
    for (int s = 0; s < Source::kSteps; ++s) {
      simd::U codes[num_vectors];
#pragma GCC unroll 4
      for (int v = 0; v < num_vectors; ++v) codes[v] = Source::codes(word[v], s);
#pragma GCC unroll 16
      for (int r = 0; r < num_rows; ++r) {
        const auto* const bytes = reinterpret_cast<const std::uint8_t*>(q + 8 * r);
        const simd::U high = simd::broadcast_bits(simd::load_bytes<std::uint32_t>(bytes));
#pragma GCC unroll 4
        for (int v = 0; v < num_vectors; ++v) {
          simd::add_signed_products(high_sums[r][v], codes[v], high);
        }
        const simd::U low = simd::broadcast_bits(simd::load_bytes<std::uint32_t>(bytes + 4));
#pragma GCC unroll 4
        for (int v = 0; v < num_vectors; ++v) {
          simd::add_signed_products(low_sums[r][v], codes[v], low);
        }
      }
      q += q_step_bytes;
    }
    words += kStepBytes;
  }
#pragma GCC unroll 16
  for (int r = 0; r < num_rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < num_vectors; ++v) {
      const simd::I dot = (simd::widen(high_sums[r][v]) << 8) + simd::widen(low_sums[r][v]);
      dots[r][v] = add ? dots[r][v] + dot : dot;
    }
  }
}

template <typename Source, int num_rows>
inline void qk_integer_rows(const QkIntegerParams& params, int row, const std::uint8_t* tile,
                            int chunk) {
  constexpr int kVectors = simd::byte_vectors(num_rows);
  const PlaneLayout& layout = params.layout;
  const int num_groups = layout.num_groups(), steps_a_group = layout.quant.group_size / 4;
  const std::int64_t q_step_bytes = std::int64_t{8} * params.num_rows;
  const std::uint8_t* scales = params.plane + layout.scales_offset();
  const std::uint8_t* zeros = params.plane + layout.zeros_offset();
  const bool is_affine = layout.quant.codebook == Codebook::kAffine;
  const float centre_of_code = centre(code_kind(layout.quant));
  const float* q_scales = params.q_scales + std::int64_t{row} * num_groups;
  const float* q_sums = params.q_sums + std::int64_t{row} * num_groups;
  for (int token = 0; token < params.num_tokens; token += kVectors * simd::kWidth) {
    simd::F logits[num_rows][kVectors] = {};
    for (int group = 0; group < num_groups; ++group) {
      simd::I dots[num_rows][kVectors];
      const int first_step = group * steps_a_group;
      for (int step = 0; step < steps_a_group; step += chunk) {
        const int left = steps_a_group - step;
        dot_steps<Source, num_rows, kVectors>(
            tile + (first_step + step) / Source::kSteps * kStepBytes +
                token / simd::kWidth * simd::kVectorBytes,
            params.q + (first_step + step) * q_step_bytes + 8 * row, q_step_bytes,
            left < chunk ? left : chunk, step > 0, dots);
      }
      for (int v = 0; v < kVectors; ++v) {
        const std::int64_t offset = 2 * (group * kPageSize + token + v * simd::kWidth);
        const simd::F scale = simd::load_bf16(scales + offset);
        const simd::F zero = is_affine ? simd::load_bf16(zeros + offset) : simd::F{};
#pragma GCC unroll 8
        for (int r = 0; r < num_rows; ++r) {
          const float q_scale = q_scales[r * num_groups + group];
          const float q_sum = q_sums[r * num_groups + group];
          const simd::F off = is_affine ? zero * q_sum : simd::F{} + centre_of_code * q_sum;
          const simd::F term = (simd::to_float(dots[r][v]) - off) * (scale * q_scale);
          logits[r][v] = logits[r][v] + term;
        }
      }
    }
    for (int r = 0; r < num_rows; ++r) {
      float* out = params.logits + (row + r) * params.logits_stride + token;
      for (int v = 0; v < kVectors; ++v) {
        const int left = params.num_tokens - token - v * simd::kWidth;
        if (left >= simd::kWidth) {
          simd::store(out + v * simd::kWidth, logits[r][v]);
        } else if (left > 0) {
          simd::store_partial(out + v * simd::kWidth, logits[r][v], left);
        }
      }
    }
  }
}

template <typename Source, int bits>
inline void qk_integer_rows_of(const QkIntegerParams& params, const std::uint8_t* tile) {
  constexpr int kChunk = steps_between_widenings((1 << bits_of_levels(bits)) - 1, 128);
  static_assert(kChunk % Source::kSteps == 0);
  for_each_row_block<simd::kByteRows>(params.num_rows, [&]<int num_rows>(int row) {
    qk_integer_rows<Source, num_rows>(params, row, tile, kChunk);
  });
}

template <int bits>
inline void qk_integer_of(const QkIntegerParams& params) {
  alignas(64) std::uint8_t tile[kPageSize * kMaxHeadDim];
  // The tokens of the last vectors that do not exist have whatever codes lie there.
  constexpr int kMostVectors = simd::byte_vectors(1);
  const int num_blocks = (params.num_tokens + kMostVectors * simd::kWidth - 1) /
                         (kMostVectors * simd::kWidth) * kMostVectors;
  Prefetcher prefetcher(params.next_plane, params.layout.plane_bytes(),
                        num_blocks * ((params.layout.head_dim + 63) / 64) * (bits == 4 ? 2 : 1));
  if constexpr (kShiftsInLoop && bits != 3 && bits != kTrellisCodes) {
    transpose_key_words<bits>(params.layout, params.plane, num_blocks, tile, prefetcher);
    qk_integer_rows_of<KeyWords<bits>, bits>(params, tile);
  } else {
    unpack_keys<bits>(params.layout, params.plane, num_blocks, tile, prefetcher);
    qk_integer_rows_of<KeyBytes, bits>(params, tile);
  }
}

inline void qk_integer_generic(const QkIntegerParams& params) {
  switch (code_kind(params.layout.quant)) {
    case kTrellisCodes: return qk_integer_of<kTrellisCodes>(params);
    case 2: return qk_integer_of<2>(params);
    case 3: return qk_integer_of<3>(params);
    default: return qk_integer_of<4>(params);
  }
}

}  // namespace
}  // namespace oscar::kernels

// Logits of a few query rows straight on the codes of a page. Included after one ISA header of
// simd/.
//
// Tokens lie in lanes: 16 bytes of each token's codes are transposed to columns of words, so that
// one shift and one lookup give a channel of kWidth tokens to every row, scales and zero points are
// contiguous loads, and no horizontal sum is needed. Scale and zero point stay out of the dot
// product: logit = scale·(q·code − zero·Σq), group by group.
#pragma once

#include "kernels/codes.h"
#include "kernels/prefetch.h"
#include "kernels/tile_panel.h"

namespace oscar::kernels {
namespace {

// Columns of 32-bit words of the codes of a block of tokens: low plane, and for 3 bits the third
// bits.
template <int bits, int num_vectors>
struct CodeColumns {
  static constexpr int kLowBits = bits_of_plane(bits);
  static constexpr int kChannelsPerWord = 32 / kLowBits;
  static constexpr int kMaxWords = kMaxHeadDim / kChannelsPerWord;
  simd::U low[kMaxWords][num_vectors];
  simd::U third[bits == 3 ? kMaxHeadDim / 32 : 1][num_vectors];

  // Four words are read at a time: up to 12 bytes past a row's end, which lie inside the plane (its
  // scales follow).
  void load(const std::uint8_t* rows, std::int64_t row_bytes, int head_dim) {
    const int num_words = head_dim / kChannelsPerWord;
    for (int v = 0; v < num_vectors; ++v) {
      const std::uint8_t* base = rows + v * simd::kWidth * row_bytes;
      load_plane(base, row_bytes, num_words, v, low);
      if constexpr (bits == 3) {
        load_plane(base + head_dim / 4, row_bytes, (head_dim + 31) / 32, v, third);
      }
    }
  }

 private:
  static void load_plane(const std::uint8_t* base, std::int64_t row_bytes, int num_words, int v,
                         simd::U (*words)[num_vectors]) {
    for (int w = 0; w < num_words; w += 4) {
      simd::U columns[4];
      simd::load_word_columns(base + 4 * w, row_bytes, columns);
      for (int i = 0; i < 4 && w + i < num_words; ++i) words[w + i][v] = columns[i];
    }
  }
};

// dots[r][v] += Σ q[r][channel]·code over the channels of one word.
template <int bits, int num_rows, int num_vectors>
inline void dot_word(const float* q, std::int64_t q_stride,
                     const CodeColumns<bits, num_vectors>& columns, int channel,
                     simd::F (&dots)[num_rows][num_vectors]) {
  using Columns = CodeColumns<bits, num_vectors>;
  simd::U low[num_vectors], third[num_vectors];
  for (int v = 0; v < num_vectors; ++v) {
    low[v] = columns.low[channel / Columns::kChannelsPerWord][v];
    if constexpr (bits == 3) {
      third[v] = columns.third[channel / 32][v] >> static_cast<std::uint32_t>(channel % 32);
    }
    if constexpr (bits == kTrellisCodes) {
      third[v] = low[v];
      low[v] = trellis_low_bits(low[v]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < Columns::kChannelsPerWord; ++i) {
    simd::F codes[num_vectors];
#pragma GCC unroll 4
    for (int v = 0; v < num_vectors; ++v) {
      simd::U index = low[v];
      if constexpr (bits == 3) {
        index = (index & 3u) | (third[v] << 2);
        third[v] >>= 1;
      }
      if constexpr (bits == kTrellisCodes) {
        index = (index & 3u) | (third[v] & 2u) << 1;
        third[v] >>= 2;
      }
      low[v] >>= static_cast<std::uint32_t>(Columns::kLowBits);
      codes[v] = simd::low_bits_to_float<bits_of_levels(bits)>(index);
    }
#pragma GCC unroll 16
    for (int r = 0; r < num_rows; ++r) {
      const simd::F factor = simd::load_broadcast(q + r * q_stride + channel + i);
#pragma GCC unroll 4
      for (int v = 0; v < num_vectors; ++v) dots[r][v] = simd::fma(factor, codes[v], dots[r][v]);
    }
  }
}

inline float sum_of(const float* x, int size) {
  simd::F sum{};
  for (int c = 0; c < size; c += simd::kWidth) sum += simd::load(x + c);
  return simd::reduce_add(sum);
}

template <int bits, int num_rows>
inline void qk_rows(const QkCodesParams& params, int row) {
  constexpr int kVectors = simd::code_vectors(num_rows);
  constexpr int kTokens = kVectors * simd::kWidth;
  const PlaneLayout& layout = params.layout;
  const int group_size = layout.quant.group_size;
  const float* q = params.q + row * params.q_stride;
  const std::uint8_t* scales = params.plane + layout.scales_offset();
  const std::uint8_t* zeros = params.plane + layout.zeros_offset();
  const bool is_affine = layout.quant.codebook == Codebook::kAffine;
  float q_sums[kMaxHeadDim / kUnit][num_rows];
  for (int group = 0; group < layout.num_groups(); ++group) {
    for (int r = 0; r < num_rows; ++r) {
      q_sums[group][r] = sum_of(q + r * params.q_stride + group * group_size, group_size);
    }
  }
  constexpr int kChannelsPerWord = CodeColumns<bits, kVectors>::kChannelsPerWord;
  const int num_blocks = (params.num_tokens + kTokens - 1) / kTokens;
  Prefetcher prefetcher(row == 0 ? params.next_plane : nullptr, layout.plane_bytes(),
                        num_blocks * (layout.head_dim / kChannelsPerWord));
  for (int token = 0; token < params.num_tokens; token += kTokens) {
    CodeColumns<bits, kVectors> columns;
    columns.load(params.plane + token * layout.code_row_bytes(), layout.code_row_bytes(),
                 layout.head_dim);
    simd::F logits[num_rows][kVectors] = {};
    for (int group = 0; group < layout.num_groups(); ++group) {
      simd::F dots[num_rows][kVectors] = {};
      for (int c = group * group_size; c < (group + 1) * group_size; c += kChannelsPerWord) {
        prefetcher.step();
        dot_word<bits>(q, params.q_stride, columns, c, dots);
      }
      for (int v = 0; v < kVectors; ++v) {
        const std::int64_t offset = 2 * (group * kPageSize + token + v * simd::kWidth);
        const simd::F scale = simd::load_bf16(scales + offset);
        const simd::F zero =
            is_affine ? simd::load_bf16(zeros + offset) : simd::broadcast(centre(bits));
        for (int r = 0; r < num_rows; ++r) {
          const simd::F dot = dots[r][v] - zero * q_sums[group][r];
          logits[r][v] = simd::fma(scale, dot, logits[r][v]);
        }
      }
    }
    for (int r = 0; r < num_rows; ++r) {
      float* out = params.logits + (row + r) * params.logits_stride + token;
      for (int v = 0; v < kVectors; ++v) {
        const int left = params.num_tokens - token - v * simd::kWidth;
        if (left <= 0) break;
        const int count = left < simd::kWidth ? left : simd::kWidth;
        simd::store_partial(out + v * simd::kWidth, logits[r][v], count);
      }
    }
  }
}

template <int bits>
inline void qk_codes_of(const QkCodesParams& params) {
  for_each_row_block<simd::kCodeRows>(
      params.num_rows, [&]<int num_rows>(int row) { qk_rows<bits, num_rows>(params, row); });
}

// panel[channel][token] of BF16 rows, whose words hold two channels each.
inline void transpose_exact_keys(const std::uint8_t* rows, std::int64_t row_bytes, int head_dim,
                                 float* panel) {
  constexpr int kTokens = simd::kTileVectors * simd::kWidth;
  for (int first = 0; first < kTokens; first += simd::kWidth) {
    for (int c = 0; c < head_dim; c += 8) {
      simd::U words[4];
      simd::load_word_columns(rows + first * row_bytes + 2 * c, row_bytes, words);
      for (int i = 0; i < 4; ++i) {
        float* const out = panel + (c + 2 * i) * kTokens + first;
        simd::store(out, simd::from_bits(words[i] << 16));
        simd::store(out + kTokens, simd::from_bits(words[i] & 0xffff0000u));
      }
    }
  }
}

// Exact keys: BF16 rows. Tokens lie in lanes, as in dot_tile.
inline void qk_exact(const QkCodesParams& params) {
  constexpr int kTokens = simd::kTileVectors * simd::kWidth;
  const int head_dim = params.layout.head_dim;
  const std::int64_t row_bytes = exact_row_stride(params);
  alignas(64) float panel[kMaxHeadDim * kTokens];
  Prefetcher prefetcher(params.next_plane, params.layout.plane_bytes(),
                        (params.num_tokens + kTokens - 1) / kTokens);
  for (int first = 0; first < params.num_tokens; first += kTokens) {
    prefetcher.step();
    transpose_exact_keys(params.plane + first * row_bytes, row_bytes, head_dim, panel);
    for_each_row_block<simd::kTileRows>(params.num_rows, [&]<int num_rows>(int row) {
      simd::F sums[num_rows][simd::kTileVectors] = {};
      multiply_panel(params.q + row * params.q_stride, params.q_stride, panel, kTokens, head_dim,
                     sums);
      for (int r = 0; r < num_rows; ++r) {
        float* out = params.logits + (row + r) * params.logits_stride + first;
        for (int v = 0; v < simd::kTileVectors; ++v) {
          const int left = params.num_tokens - first - v * simd::kWidth;
          if (left <= 0) break;
          simd::store_partial(out + v * simd::kWidth, sums[r][v],
                              left < simd::kWidth ? left : simd::kWidth);
        }
      }
    });
  }
}

inline void qk_codes_generic(const QkCodesParams& params) {
  switch (code_kind(params.layout.quant)) {
    case kTrellisCodes: return qk_codes_of<kTrellisCodes>(params);
    case 2: return qk_codes_of<2>(params);
    case 3: return qk_codes_of<3>(params);
    case 4: return qk_codes_of<4>(params);
    default: return qk_exact(params);
  }
}

}  // namespace
}  // namespace oscar::kernels

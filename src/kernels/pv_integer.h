// Weighted sums of a page's values straight on the codes, with weights of 16 bits. Included after
// one ISA header of simd/.
//
// Channels lie in lanes, four tokens in the bytes of a lane. A weight w = p·scale becomes
// u = round(w·65535/max w) in two bytes, each summed apart; the zero point comes off with the
// *rounded* weights. Sums are exact; what follows is the same sequence of roundings in every set.
#pragma once

#include "kernels/codes.h"
#include "kernels/prefetch.h"
#include "kernels/pv_words.h"
#include "kernels/rounded_weights.h"
#include "kernels/step_sums.h"

namespace oscar::kernels {
namespace {

// Sixteen channels of four tokens: out[channel] = their codes in four bytes. low, third:
// interleaved bytes of the rows, `third` being the one that holds channel 0's third bit (3 bits
// only). Trellis codes: those of the levels' low bits and of the codes.
template <int bits>
inline void unpack_value_unit(const std::uint32_t* low, const std::uint32_t* third,
                              std::uint8_t* out) {
  constexpr int kCodesAByte = bits == 4 ? 2 : 4;
  constexpr std::uint32_t kShifts = kCodesAByte;
  constexpr std::uint32_t kMask = bits == 4 ? 0x0f0f0f0fu : 0x03030303u;
  const simd::U lane = simd::lane_index();
#pragma GCC unroll 4
  for (int c = 0; c < kUnit; c += simd::kWidth) {
    const simd::U shift = (lane + static_cast<std::uint32_t>(c)) % kShifts * (8 / kShifts);
    simd::U codes = (simd::repeat_words<kCodesAByte>(low + c / kCodesAByte) >> shift) & kMask;
    if constexpr (bits == 3) {
      const simd::U bit = (lane + static_cast<std::uint32_t>(c)) % 8u;
      codes |= ((simd::repeat_words<8>(third + c / 8) >> bit) & 0x01010101u) << 2;
    }
    if constexpr (bits == kTrellisCodes) {
      codes |= ((simd::repeat_words<4>(third + c / 4) >> shift) & 0x02020202u) << 1;
    }
    simd::store_words(out + 4 * c, codes);
  }
}

// Trellis codes of a page to tile[quad][channel], as unpack_values: the levels' low bits are taken
// from whole words first, row by row.
inline void unpack_trellis_values(const PlaneLayout& layout, const std::uint8_t* plane,
                                  int num_quads, std::uint8_t* tile, Prefetcher& prefetcher) {
  const std::int64_t row_bytes = layout.code_row_bytes(), num_bytes = 4 * num_quads * row_bytes;
  // Whole vectors are read and written, and sixteen bytes of a row at a time: plane and copy hold
  // as much (a page of codes is a multiple of 64 bytes, and scales follow).
  alignas(64) std::uint8_t low_plane[kPageSize * kMaxHeadDim / 4 + 64];
  for (std::int64_t at = 0; at < num_bytes; at += simd::kVectorBytes) {
    simd::store_words(low_plane + at, trellis_low_bits(simd::load_words(plane + at)));
  }
  constexpr int kBytes = simd::kVectorBytes;
  __builtin_memset(low_plane + (num_bytes + kBytes - 1) / kBytes * kBytes, 0, 16);
  for (int quad = 0; quad < num_quads; ++quad) {
    prefetcher.step();
    const std::int64_t at = 4 * quad * row_bytes;
    for (std::int64_t byte = 0; byte < row_bytes; byte += 16) {
      alignas(64) std::uint32_t low[16], codes[16];
      simd::interleave_bytes(low_plane + at + byte, row_bytes, low);
      simd::interleave_bytes(plane + at + byte, row_bytes, codes);
      const std::int64_t left = row_bytes - byte;
      const int num_units = left < 16 ? static_cast<int>(left / 4) : 4;
      for (int i = 0; i < num_units; ++i, tile += 4 * kUnit) {
        unpack_value_unit<kTrellisCodes>(low + 4 * i, codes + 4 * i, tile);
      }
    }
  }
}

// tile[quad][channel]: words of the codes of tokens 4·quad … 4·quad + 3. Rows are read sixteen
// bytes at a time: up to 15 bytes past a row's end, which lie inside the plane (its scales follow).
template <int bits>
inline void unpack_values(const PlaneLayout& layout, const std::uint8_t* plane, int num_quads,
                          std::uint8_t* tile, Prefetcher& prefetcher) {
  constexpr int kCodesAByte = bits == 4 ? 2 : 4;
  constexpr int kWordsAUnit = kUnit / kCodesAByte, kUnitsALoad = 16 / kWordsAUnit;
  const std::int64_t row_bytes = layout.code_row_bytes();
  const int num_units = layout.head_dim / kUnit, low_bytes = layout.head_dim / kCodesAByte;
  for (int quad = 0; quad < num_quads; ++quad) {
    prefetcher.step();
    const std::uint8_t* rows = plane + 4 * quad * row_bytes;
    [[maybe_unused]] alignas(64) std::uint32_t third[kMaxHeadDim / 8];
    if constexpr (bits == 3) {
      for (int byte = 0; byte < layout.head_dim / 8; byte += 16) {
        simd::interleave_bytes(rows + low_bytes + byte, row_bytes, third + byte);
      }
    }
    alignas(64) std::uint32_t low[16];
    int unit = 0;
    for (; unit + kUnitsALoad <= num_units; unit += kUnitsALoad, rows += 16) {
      simd::interleave_bytes(rows, row_bytes, low);
#pragma GCC unroll 4
      for (int i = 0; i < kUnitsALoad; ++i) {
        unpack_value_unit<bits>(low + i * kWordsAUnit, third + 2 * (unit + i),
                                tile + 4 * kUnit * i);
      }
      tile += 4 * kUnit * kUnitsALoad;
    }
    if (unit == num_units) continue;
    simd::interleave_bytes(rows, row_bytes, low);
    for (int i = 0; unit < num_units; ++i, ++unit, tile += 4 * kUnit) {
      unpack_value_unit<bits>(low + i * kWordsAUnit, third + 2 * unit, tile);
    }
  }
}

// totals[r][v] (+)= Σ over num_quads ≤ a widening's worth of quads. A function of its own for the
// reason that dot_steps is one. high, low: [num_rows][kPageSize].
template <int num_rows, int num_vectors>
[[gnu::noinline]] void weigh_quads(const std::uint8_t* tile, std::int64_t quad_bytes,
                                   const std::uint8_t (*high)[kPageSize],
                                   const std::uint8_t (*low)[kPageSize], int first_quad,
                                   int num_quads, simd::I (*totals)[num_vectors]) {
  simd::ByteSums high_sums[num_rows][num_vectors] = {}, low_sums[num_rows][num_vectors] = {};
  const std::uint8_t* codes_at = tile + first_quad * quad_bytes;
  for (int quad = first_quad; quad < first_quad + num_quads; ++quad, codes_at += quad_bytes) {
    simd::U codes[num_vectors];
#pragma GCC unroll 4
    for (int v = 0; v < num_vectors; ++v) {
      codes[v] = simd::load_words(codes_at + v * simd::kVectorBytes);
    }
    add_weighted_codes(codes, high, low, quad, high_sums, low_sums);
  }
#pragma GCC unroll 8
  for (int r = 0; r < num_rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < num_vectors; ++v) {
      const simd::I sum = (simd::widen(high_sums[r][v]) << 8) + simd::widen(low_sums[r][v]);
      totals[r][v] = first_quad > 0 ? totals[r][v] + sum : sum;
    }
  }
}

// out[r][channel …] += step·Σ − offset for num_vectors vectors of channels.
template <int num_rows, int num_vectors>
inline void accumulate_quads(const PvIntegerParams& params, int row, int channel,
                             const std::uint8_t* tile, int num_quads, int chunk,
                             const RoundedWeights<num_rows>& weights) {
  simd::I totals[num_rows][num_vectors];
  for (int first = 0; first < num_quads; first += chunk) {
    const int left = num_quads - first;
    weigh_quads<num_rows, num_vectors>(tile + 4 * channel, std::int64_t{4} * params.layout.head_dim,
                                       weights.high, weights.low, first,
                                       left < chunk ? left : chunk, totals);
  }
  for (int r = 0; r < num_rows; ++r) {
    float* out = params.out + (row + r) * params.out_stride + channel;
    for (int v = 0; v < num_vectors; ++v) {
      const simd::F sum = weights.step[r] * simd::to_float(totals[r][v]) - weights.offset[r];
      simd::store(out + v * simd::kWidth, simd::load(out + v * simd::kWidth) + sum);
    }
  }
}

template <int num_rows>
inline void pv_integer_rows(const PvIntegerParams& params, int row, const std::uint8_t* tile,
                            int chunk) {
  constexpr int kVectors = simd::weight_vectors(num_rows);
  const PlaneLayout& layout = params.layout;
  const int num_quads = (params.num_tokens + 3) / 4;
  for (int group = 0; group < layout.num_groups(); ++group) {
    RoundedWeights<num_rows> weights;
    weights.load(params, row, group);
    int c = group * layout.quant.group_size;
    const int end = c + layout.quant.group_size;
    for (; c + kVectors * simd::kWidth <= end; c += kVectors * simd::kWidth) {
      accumulate_quads<num_rows, kVectors>(params, row, c, tile, num_quads, chunk, weights);
    }
    for (; c < end; c += simd::kWidth) {
      accumulate_quads<num_rows, 1>(params, row, c, tile, num_quads, chunk, weights);
    }
  }
}

template <int bits>
inline void pv_integer_of(const PvIntegerParams& params) {
  constexpr int kChunk = steps_between_widenings((1 << bits_of_levels(bits)) - 1, 255);
  alignas(64) std::uint8_t tile[kPageSize * kMaxHeadDim];
  const int num_quads = (params.num_tokens + 3) / 4;
  Prefetcher prefetcher(params.next_plane, params.layout.plane_bytes(), num_quads);
#ifdef OSCAR_SIMD_SHIFTS_IN_LOOP
  if constexpr (bits != 3 && bits != kTrellisCodes) {
    if (params.layout.quant.group_size % (8 / bits * simd::kWidth) == 0) {
      interleave_values(params.layout, params.plane, num_quads, tile, prefetcher);
      for_each_row_block<simd::kWeightRows>(params.num_rows, [&]<int num_rows>(int row) {
        pv_integer_word_rows<bits, num_rows>(params, row, tile, kChunk);
      });
      return;
    }
  }
#endif
  if constexpr (bits == kTrellisCodes) {
    unpack_trellis_values(params.layout, params.plane, num_quads, tile, prefetcher);
  } else {
    unpack_values<bits>(params.layout, params.plane, num_quads, tile, prefetcher);
  }
  for_each_row_block<simd::kWeightRows>(params.num_rows, [&]<int num_rows>(int row) {
    pv_integer_rows<num_rows>(params, row, tile, kChunk);
  });
}

inline void pv_integer_generic(const PvIntegerParams& params) {
  switch (code_kind(params.layout.quant)) {
    case kTrellisCodes: return pv_integer_of<kTrellisCodes>(params);
    case 2: return pv_integer_of<2>(params);
    case 3: return pv_integer_of<3>(params);
    default: return pv_integer_of<4>(params);
  }
}

}  // namespace
}  // namespace oscar::kernels

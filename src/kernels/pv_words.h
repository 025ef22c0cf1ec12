// Weighted sums of values of 2 and 4 bits whose codes are shifted out of words in registers: an
// interleaved byte of four tokens is a lane, and its fields are neighbouring channels. Included
// after one ISA header of simd/; only where it defines OSCAR_SIMD_SHIFTS_IN_LOOP.
#pragma once

#include "kernels/prefetch.h"
#include "kernels/rounded_weights.h"

#ifdef OSCAR_SIMD_SHIFTS_IN_LOOP
namespace oscar::kernels {
namespace {

// words[quad][byte of a row]: the bytes of tokens 4·quad … 4·quad + 3.
inline void interleave_values(const PlaneLayout& layout, const std::uint8_t* plane, int num_quads,
                              std::uint8_t* words, Prefetcher& prefetcher) {
  const std::int64_t row_bytes = layout.code_row_bytes();
  for (int quad = 0; quad < num_quads; ++quad) {
    prefetcher.step();
    const std::uint8_t* rows = plane + 4 * quad * row_bytes;
    if (row_bytes == 16) {
      simd::interleave_quad<16>(rows, words);
      words += 64;
      continue;
    }
    if (row_bytes == 32) {
      simd::interleave_quad<32>(rows, words);
      words += 128;
      continue;
    }
    for (std::int64_t byte = 0; byte < row_bytes; byte += 16, words += 64) {
      simd::interleave_bytes(rows + byte, row_bytes, reinterpret_cast<std::uint32_t*>(words));
    }
  }
}

// totals[r][f] (+)= Σ over num_quads ≤ a widening's worth of quads of fields first_field + f of the
// words, a vector of them for each field.
template <int bits, int first_field, int num_fields, int num_rows>
[[gnu::noinline]] void weigh_fields(const std::uint8_t* words, std::int64_t quad_bytes,
                                    const std::uint8_t (*high)[kPageSize],
                                    const std::uint8_t (*low)[kPageSize], int first_quad,
                                    int num_quads, simd::I (*totals)[8 / bits]) {
  constexpr std::uint32_t kMask = bits == 4 ? 0x0f0f0f0fu : 0x03030303u;
  simd::ByteSums high_sums[num_rows][num_fields] = {}, low_sums[num_rows][num_fields] = {};
  const std::uint8_t* words_at = words + first_quad * quad_bytes;
  for (int quad = first_quad; quad < first_quad + num_quads; ++quad, words_at += quad_bytes) {
    const simd::U word = simd::load_words(words_at);
    simd::U codes[num_fields];
#pragma GCC unroll 4
    for (int f = 0; f < num_fields; ++f) {
      codes[f] = (word >> static_cast<std::uint32_t>(bits * (first_field + f))) & kMask;
    }
    add_weighted_codes(codes, high, low, quad, high_sums, low_sums);
  }
#pragma GCC unroll 8
  for (int r = 0; r < num_rows; ++r) {
#pragma GCC unroll 4
    for (int f = 0; f < num_fields; ++f) {
      const simd::I sum = (simd::widen(high_sums[r][f]) << 8) + simd::widen(low_sums[r][f]);
      simd::I& total = totals[r][first_field + f];
      total = first_quad > 0 ? total + sum : sum;
    }
  }
}

template <int bits, int num_rows>
inline void pv_integer_word_rows(const PvIntegerParams& params, int row, const std::uint8_t* words,
                                 int chunk) {
  constexpr int kFields = 8 / bits, kChannels = kFields * simd::kWidth;
  constexpr int kAtOnce =
      simd::weight_vectors(num_rows) < kFields ? simd::weight_vectors(num_rows) : kFields;
  const PlaneLayout& layout = params.layout;
  const std::int64_t quad_bytes = 4 * layout.code_row_bytes();
  const int num_quads = (params.num_tokens + 3) / 4;
  for (int group = 0; group < layout.num_groups(); ++group) {
    RoundedWeights<num_rows> weights;
    weights.load(params, row, group);
    const int end = (group + 1) * layout.quant.group_size;
    for (int c = group * layout.quant.group_size; c < end; c += kChannels) {
      simd::I totals[num_rows][kFields];
      const std::uint8_t* const at = words + c / kFields * 4;
      for (int first = 0; first < num_quads; first += chunk) {
        const int left = num_quads - first, count = left < chunk ? left : chunk;
        weigh_fields<bits, 0, kAtOnce, num_rows>(at, quad_bytes, weights.high, weights.low, first,
                                                 count, totals);
        if constexpr (kAtOnce < kFields) {
          static_assert(kFields == 2 * kAtOnce);
          weigh_fields<bits, kAtOnce, kAtOnce, num_rows>(at, quad_bytes, weights.high, weights.low,
                                                         first, count, totals);
        }
      }
      for (int r = 0; r < num_rows; ++r) {
        simd::F sums[kFields];
        for (int f = 0; f < kFields; ++f) {
          sums[f] = weights.step[r] * simd::to_float(totals[r][f]) - weights.offset[r];
        }
        simd::interleave_lanes(sums);
        float* const out = params.out + (row + r) * params.out_stride + c;
        for (int f = 0; f < kFields; ++f) {
          simd::store(out + f * simd::kWidth, simd::load(out + f * simd::kWidth) + sums[f]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace oscar::kernels
#endif

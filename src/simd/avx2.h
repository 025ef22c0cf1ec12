// Vector operations for AVX2 with FMA: eight lanes.
#pragma once

#include <immintrin.h>

#define OSCAR_SIMD_WIDTH 8
#include "simd/composed.h"
#include "simd/vector.h"

namespace oscar::simd {
namespace {

// Register blocks for 16 vector registers.
constexpr int kTransformRows = 4, kTransformFewRows = 1;
constexpr int kTransformVectors = 8;  // of few rows
constexpr int kTileRows = 6, kTileVectors = 2;
constexpr int kCodeRows = 6;  // rows that share one unpack
constexpr int code_vectors(int rows) { return rows <= 2 ? 4 : rows <= 4 ? 2 : 1; }  // of tokens
constexpr int code_units(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }  // of 16 channels

constexpr int kMeanVectors = 1;  // of the mean key's columns, even and odd ones

// Integer operations: query rows, rows of weights, and vectors that share one load of the codes.
constexpr int kByteRows = 6, kWeightRows = 6;
constexpr int byte_vectors(int rows) { return rows <= 3 ? 2 : 1; }
constexpr int weight_vectors(int rows) { return rows <= 3 ? 2 : 1; }

inline __m256i integers(U v) { return reinterpret_cast<__m256i>(v); }
inline U unsigned_lanes(__m256i v) { return reinterpret_cast<U>(v); }

inline F min(F a, F b) { return _mm256_min_ps(a, b); }
inline F max(F a, F b) { return _mm256_max_ps(a, b); }
inline U max(U a, U b) { return unsigned_lanes(_mm256_max_epu32(integers(a), integers(b))); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }

inline float reduce_min(F v) {
  __m128 m = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_min_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_min_ss(m, _mm_movehdup_ps(m)));
}
inline float reduce_max(F v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
inline std::uint32_t reduce_max(U v) {
  __m128i m =
      _mm_max_epu32(_mm256_castsi256_si128(integers(v)), _mm256_extracti128_si256(integers(v), 1));
  m = _mm_max_epu32(m, _mm_unpackhi_epi64(m, m));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 1));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(m));
}
inline std::uint32_t reduce_add(U v) {
  __m128i m =
      _mm_add_epi32(_mm256_castsi256_si128(integers(v)), _mm256_extracti128_si256(integers(v), 1));
  m = _mm_add_epi32(m, _mm_unpackhi_epi64(m, m));
  m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 1));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(m));
}

// Neighbouring lanes 2i and 2i + 1 change places.
inline F swap_pairs(F v) { return _mm256_permute_ps(v, 0xb1); }
// Vector v of sixteen lanes that repeat n floats; n is 2, 4, 8 or 16.
template <int n>
inline F load_repeated(const float* p, int v) {
  if constexpr (n == 2) {
    double pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return _mm256_castpd_ps(_mm256_set1_pd(pair));
  } else if constexpr (n == 4) {
    const __m128 four = _mm_loadu_ps(p);
    return _mm256_set_m128(four, four);
  } else {
    return load(p + v * kWidth % n);
  }
}
inline F reverse(F v) {
  return _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}

// Adds up what blocks of 1, 2, 4 and 8 pairs hold of the same degree, into `one`: sixteen lanes
// each, lane 2n·(degree / 2) + 2·pair + degree % 2 for n pairs.
inline void fold_levels(F (&one)[2], F (&two)[2], F (&four)[2], const F (&eight)[2]) {
  four[0] += eight[0] + eight[1];
  two[0] += _mm256_permute2f128_ps(four[0], four[1], 0x20) +
            _mm256_permute2f128_ps(four[0], four[1], 0x31);
  const __m256d first = _mm256_castps_pd(two[0]), second = _mm256_castps_pd(two[1]);
  const __m256d sums = _mm256_castps_pd(_mm256_castpd_ps(_mm256_unpacklo_pd(first, second)) +
                                        _mm256_castpd_ps(_mm256_unpackhi_pd(first, second)));
  one[0] += _mm256_castpd_ps(_mm256_permute4x64_pd(sums, 0xd8));
}

// Eight running sums, lane = channel mod 8.
typedef F Lanes;
inline void add_to_lanes(Lanes& lanes, F v, int) { lanes += v; }
// ((0+4)+(2+6))+((1+5)+(3+7)): the codec's order.
inline float sum_lanes(Lanes v) {
  const __m128 s = _mm256_castps256_ps128(v) + _mm256_extractf128_ps(v, 1);
  const __m128 pairs = s + _mm_movehl_ps(s, s);
  return pairs[0] + pairs[1];
}
inline float reduce_add(F v) { return sum_lanes(v); }

inline __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), integers(lane_index()));
}
inline F load_partial(const float* p, int n, float fill) {
  if (n == kWidth) return load(p);
  const __m256i mask = first_lanes(n);
  return _mm256_blendv_ps(broadcast(fill), _mm256_maskload_ps(p, mask), _mm256_castsi256_ps(mask));
}
inline void store_partial(float* p, F v, int n) {
  if (n == kWidth) return store(p, v);
  _mm256_maskstore_ps(p, first_lanes(n), v);
}

inline void store_bytes(std::uint8_t* p, U v) {
  const __m256i low_bytes = _mm256_shuffle_epi8(
      integers(v), _mm256_broadcastsi128_si256(
                       _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1)));
  const __m128i eight =
      _mm_unpacklo_epi32(_mm256_castsi256_si128(low_bytes), _mm256_extracti128_si256(low_bytes, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), eight);
}
inline void store_halves(std::uint8_t* p, U v) {
  const U low = v & 0xffffu;
  const __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(integers(low)),
                                          _mm256_extracti128_si256(integers(low), 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), halves);
}
inline F load_bf16(const std::uint8_t* p) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

template <int bits>
inline F low_bits_to_float(U v) {
  if constexpr (bits == 4) {
    return _mm256_cvtepi32_ps(integers(v & 15u));
  } else {
    // The lookup reads three bits of the index: for two bits the table repeats.
    const F levels = bits == 2 ? F{0, 1, 2, 3, 0, 1, 2, 3} : F{0, 1, 2, 3, 4, 5, 6, 7};
    return _mm256_permutevar8x32_ps(levels, integers(v));
  }
}

// Sixteen channels with channels in lanes: low holds their low bits in order, third (3 bits only)
// their third bits.
template <int bits>
inline void load_unit(const std::uint8_t* low, const std::uint8_t* third, F codes[2]) {
  const U lane = lane_index();
  for (std::uint32_t j = 0; j < 2; ++j) {
    U word;
    if constexpr (bits == 4) {
      word = broadcast_bits(load_bytes<std::uint32_t>(low + 4 * j)) >> (4u * lane);
    } else {
      word = broadcast_bits(load_bytes<std::uint32_t>(low)) >> (16u * j + 2u * lane);
    }
    if constexpr (bits == 3) {
      const U third_bits = broadcast_bits(load_bytes<std::uint16_t>(third));
      word = (word & 3u) | ((third_bits >> (8u * j + lane)) << 2);
    }
    codes[j] = low_bits_to_float<bits>(word);
  }
}

// columns[w][lane] = the 32-bit word at base + lane·stride + 4w.
inline void load_word_columns(const std::uint8_t* base, std::int64_t stride, U columns[4]) {
  __m256i rows[4];
  for (int i = 0; i < 4; ++i) {
    const auto* low = reinterpret_cast<const __m128i*>(base + i * stride);
    const auto* high = reinterpret_cast<const __m128i*>(base + (i + 4) * stride);
    rows[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)),
                                      _mm_loadu_si128(high), 1);
  }
  const __m256i low01 = _mm256_unpacklo_epi32(rows[0], rows[1]);
  const __m256i low23 = _mm256_unpacklo_epi32(rows[2], rows[3]);
  const __m256i high01 = _mm256_unpackhi_epi32(rows[0], rows[1]);
  const __m256i high23 = _mm256_unpackhi_epi32(rows[2], rows[3]);
  columns[0] = unsigned_lanes(_mm256_unpacklo_epi64(low01, low23));
  columns[1] = unsigned_lanes(_mm256_unpackhi_epi64(low01, low23));
  columns[2] = unsigned_lanes(_mm256_unpacklo_epi64(high01, high23));
  columns[3] = unsigned_lanes(_mm256_unpackhi_epi64(high01, high23));
}

// interleaved[i], i in [0, 16): byte i of the four rows of 16 bytes at base, base + stride, …, in
// this order from the lowest byte.
inline void interleave_bytes(const std::uint8_t* base, std::int64_t stride,
                             std::uint32_t interleaved[16]) {
  __m128i rows[4];
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(base + i * stride));
  }
  auto* const out = reinterpret_cast<__m128i*>(interleaved);
  const __m128i low01 = _mm_unpacklo_epi8(rows[0], rows[1]);
  const __m128i low23 = _mm_unpacklo_epi8(rows[2], rows[3]);
  const __m128i high01 = _mm_unpackhi_epi8(rows[0], rows[1]);
  const __m128i high23 = _mm_unpackhi_epi8(rows[2], rows[3]);
  _mm_storeu_si128(out, _mm_unpacklo_epi16(low01, low23));
  _mm_storeu_si128(out + 1, _mm_unpackhi_epi16(low01, low23));
  _mm_storeu_si128(out + 2, _mm_unpacklo_epi16(high01, high23));
  _mm_storeu_si128(out + 3, _mm_unpackhi_epi16(high01, high23));
}

// Lane i: words[i / n]; n is a power of two up to 8.
template <int n>
inline U repeat_words(const std::uint32_t* words) {
  if constexpr (n >= kWidth) {
    return broadcast_bits(words[0]);
  } else {
    const __m128i few = n == 4 ? _mm_loadl_epi64(reinterpret_cast<const __m128i*>(words))
                               : _mm_loadu_si128(reinterpret_cast<const __m128i*>(words));
    const U index = lane_index() / static_cast<std::uint32_t>(n);
    return unsigned_lanes(
        _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(few), integers(index)));
  }
}

// Running sums of products of bytes, four a lane. Codes are at most 15, so that either operand may
// be the signed one; widen() gives Σ exactly while no partial sum of two products a call passes
// kProductLimit.
typedef U ByteSums;
constexpr int kProductLimit = 32767;
inline void add_products(ByteSums& sums, __m256i products) {
  // GCC would re-associate plain sums and spill them.
  __asm__("vpaddw %1, %0, %0" : "+x"(sums) : "x"(products));
}
inline void add_signed_products(ByteSums& sums, U codes, U bytes) {
  add_products(sums, _mm256_maddubs_epi16(integers(codes), integers(bytes)));
}
inline void add_unsigned_products(ByteSums& sums, U codes, U bytes) {
  add_products(sums, _mm256_maddubs_epi16(integers(bytes), integers(codes)));
}
inline I widen(ByteSums sums) {
  return reinterpret_cast<I>(_mm256_madd_epi16(integers(sums), _mm256_set1_epi16(1)));
}

inline void transpose(F block[kWidth]) {
  F pairs[8], quads[8];
  for (int i = 0; i < 4; ++i) {
    pairs[2 * i] = _mm256_unpacklo_ps(block[2 * i], block[2 * i + 1]);
    pairs[2 * i + 1] = _mm256_unpackhi_ps(block[2 * i], block[2 * i + 1]);
  }
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 2; ++i) {
      const F a = pairs[4 * half + i], b = pairs[4 * half + 2 + i];
      quads[4 * half + 2 * i] = _mm256_shuffle_ps(a, b, 0x44);
      quads[4 * half + 2 * i + 1] = _mm256_shuffle_ps(a, b, 0xee);
    }
  }
  for (int i = 0; i < 4; ++i) {
    block[i] = _mm256_permute2f128_ps(quads[i], quads[4 + i], 0x20);
    block[4 + i] = _mm256_permute2f128_ps(quads[i], quads[4 + i], 0x31);
  }
}

}  // namespace
}  // namespace oscar::simd

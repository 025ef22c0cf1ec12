// Vector operations for AVX-512 F, BW, DQ, VL, and VNNI where the compiler has it: sixteen lanes.
#pragma once

#include <immintrin.h>

#define OSCAR_SIMD_WIDTH 16
// Codes are shifted out of words in the loop that multiplies them: of four vector pipes two
// multiply, and registers suffice.
#define OSCAR_SIMD_SHIFTS_IN_LOOP
#include "simd/vector.h"

namespace oscar::simd {
namespace {

// Register blocks for 32 vector registers.
constexpr int kTransformRows = 8, kTransformFewRows = 3;
constexpr int kTransformVectors = 8;  // of few rows
constexpr int kTileRows = 12, kTileVectors = 2;
constexpr int kCodeRows = 8;                                        // rows that share one unpack
constexpr int code_vectors(int rows) { return rows <= 4 ? 4 : 2; }  // of tokens
constexpr int code_units(int rows) { return rows <= 2 ? 8 : rows <= 6 ? 4 : 2; }  // of 16 channels

constexpr int kMeanVectors = 2;  // of the mean key's columns, even and odd ones

// Integer operations: query rows, rows of weights, and vectors that share one load of the codes.
constexpr int kByteRows = 6, kWeightRows = 6;
constexpr int byte_vectors(int rows) { return rows <= 3 ? 4 : 2; }
constexpr int weight_vectors(int rows) { return rows <= 3 ? 4 : 2; }

inline __m512i integers(U v) { return reinterpret_cast<__m512i>(v); }
inline U unsigned_lanes(__m512i v) { return reinterpret_cast<U>(v); }

inline F min(F a, F b) { return _mm512_min_ps(a, b); }
inline F max(F a, F b) { return _mm512_max_ps(a, b); }
inline U max(U a, U b) { return unsigned_lanes(_mm512_max_epu32(integers(a), integers(b))); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }

// v·2^n for whole n that leave it a normal number.
inline F times_power_of_two(F v, F n) { return _mm512_scalef_ps(v, n); }

inline float reduce_min(F v) { return _mm512_reduce_min_ps(v); }
inline float reduce_max(F v) { return _mm512_reduce_max_ps(v); }
inline std::uint32_t reduce_max(U v) { return _mm512_reduce_max_epu32(integers(v)); }
inline std::uint32_t reduce_add(U v) {
  return static_cast<std::uint32_t>(_mm512_reduce_add_epi32(integers(v)));
}
inline float reduce_add(F v) { return _mm512_reduce_add_ps(v); }

// Neighbouring lanes 2i and 2i + 1 change places.
inline F swap_pairs(F v) { return _mm512_permute_ps(v, 0xb1); }
// Vector v of sixteen lanes that repeat n floats; n is 2, 4, 8 or 16.
template <int n>
inline F load_repeated(const float* p, int) {
  if constexpr (n == 2) {
    double pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return _mm512_castpd_ps(_mm512_set1_pd(pair));
  } else if constexpr (n == 4) {
    return _mm512_broadcast_f32x4(_mm_loadu_ps(p));
  } else if constexpr (n == 8) {
    return _mm512_broadcast_f32x8(_mm256_loadu_ps(p));
  } else {
    return load(p);
  }
}
inline F reverse(F v) {
  const __m512i lanes = _mm512_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_permutexvar_ps(lanes, v);
}

// Adds up what blocks of 1, 2, 4 and 8 pairs hold of the same degree, into `one`: sixteen lanes
// each, lane 2n·(degree / 2) + 2·pair + degree % 2 for n pairs.
inline void fold_levels(F (&one)[1], F (&two)[1], F (&four)[1], const F (&eight)[1]) {
  const auto add_halves = [](F v) {
    return _mm512_zextps256_ps512(
        _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
  };
  four[0] += add_halves(eight[0]);
  two[0] += add_halves(_mm512_shuffle_f32x4(four[0], four[0], 0xd8));
  const __m512i even_pairs_first = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  one[0] += add_halves(
      _mm512_castpd_ps(_mm512_permutexvar_pd(even_pairs_first, _mm512_castps_pd(two[0]))));
}

// Eight running sums, lane = channel mod 8.
typedef float Lanes __attribute__((vector_size(32)));
inline void add_to_lanes(Lanes& lanes, F v, int) {
  lanes += _mm512_castps512_ps256(v);
  lanes += _mm512_extractf32x8_ps(v, 1);
}
// ((0+4)+(2+6))+((1+5)+(3+7)): the codec's order.
inline float sum_lanes(Lanes v) {
  const __m128 s = _mm256_castps256_ps128(v) + _mm256_extractf128_ps(v, 1);
  const __m128 pairs = s + _mm_movehl_ps(s, s);
  return pairs[0] + pairs[1];
}

inline __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1); }
inline F load_partial(const float* p, int n, float fill) {
  return _mm512_mask_loadu_ps(broadcast(fill), first_lanes(n), p);
}
inline void store_partial(float* p, F v, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }

inline void store_bytes(std::uint8_t* p, U v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(integers(v)));
}
inline void store_halves(std::uint8_t* p, U v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(integers(v)));
}
// high[t], low[t]: bits [8, 16) and [0, 8) of 64 words.
inline void split_bytes(const U (&words)[4], std::uint8_t* high, std::uint8_t* low) {
  // Packing acts within 128 bits: dwords 4L + v of the result are lane L of vector v.
  const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i halves = _mm512_set1_epi32(0xffff);
  __m512i packed[2];
  for (int i = 0; i < 2; ++i) {
    packed[i] = _mm512_packus_epi32(_mm512_and_si512(integers(words[2 * i]), halves),
                                    _mm512_and_si512(integers(words[2 * i + 1]), halves));
  }
  const __m512i bytes = _mm512_set1_epi16(0xff);
  const __m512i high_bytes =
      _mm512_packus_epi16(_mm512_srli_epi16(packed[0], 8), _mm512_srli_epi16(packed[1], 8));
  const __m512i low_bytes =
      _mm512_packus_epi16(_mm512_and_si512(packed[0], bytes), _mm512_and_si512(packed[1], bytes));
  _mm512_storeu_si512(high, _mm512_permutexvar_epi32(in_order, high_bytes));
  _mm512_storeu_si512(low, _mm512_permutexvar_epi32(in_order, low_bytes));
}
inline F load_bf16(const std::uint8_t* p) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

template <int bits>
inline F low_bits_to_float(U v) {
  // The lookup reads four bits of the index: for fewer bits the table repeats.
  F levels{};
  for (int i = 0; i < kWidth; ++i) levels[i] = static_cast<float>(i % (1 << bits));
  return _mm512_permutexvar_ps(integers(v), levels);
}

// Sixteen channels with channels in lanes: low holds their low bits in order, third (3 bits only)
// their third bits.
template <int bits>
inline void load_unit(const std::uint8_t* low, const std::uint8_t* third, F codes[1]) {
  const U lane = lane_index();
  U word = broadcast_bits(load_bytes<std::uint32_t>(low));
  if constexpr (bits == 4) {
    const U high = broadcast_bits(load_bytes<std::uint32_t>(low + 4));
    word = (lane < 8u ? word : high) >> (4u * (lane & 7u));
  } else {
    word >>= 2u * lane;
  }
  if constexpr (bits == 3) {
    const U third_bits = broadcast_bits(load_bytes<std::uint16_t>(third));
    word = (word & 3u) | ((third_bits >> lane) << 2);
  }
  codes[0] = low_bits_to_float<bits>(word);
}

// columns[w][lane] = the 32-bit word at base + lane·stride + 4w.
inline void load_word_columns(const std::uint8_t* base, std::int64_t stride, U columns[4]) {
  __m512i rows[4];
  for (int i = 0; i < 4; ++i) {
    const auto load_row = [&](int row) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(base + row * stride));
    };
    const __m256i low =
        _mm256_inserti128_si256(_mm256_castsi128_si256(load_row(i)), load_row(i + 4), 1);
    const __m256i high =
        _mm256_inserti128_si256(_mm256_castsi128_si256(load_row(i + 8)), load_row(i + 12), 1);
    rows[i] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  const __m512i low01 = _mm512_unpacklo_epi32(rows[0], rows[1]);
  const __m512i low23 = _mm512_unpacklo_epi32(rows[2], rows[3]);
  const __m512i high01 = _mm512_unpackhi_epi32(rows[0], rows[1]);
  const __m512i high23 = _mm512_unpackhi_epi32(rows[2], rows[3]);
  columns[0] = unsigned_lanes(_mm512_unpacklo_epi64(low01, low23));
  columns[1] = unsigned_lanes(_mm512_unpackhi_epi64(low01, low23));
  columns[2] = unsigned_lanes(_mm512_unpacklo_epi64(high01, high23));
  columns[3] = unsigned_lanes(_mm512_unpackhi_epi64(high01, high23));
}

// interleaved[i], i in [0, 16): byte i of the four rows of 16 bytes at base, base + stride, …, in
// this order from the lowest byte.
inline void interleave_bytes(const std::uint8_t* base, std::int64_t stride,
                             std::uint32_t interleaved[16]) {
  __m128i rows[4];
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(base + i * stride));
  }
  const __m128i low01 = _mm_unpacklo_epi8(rows[0], rows[1]);
  const __m128i low23 = _mm_unpacklo_epi8(rows[2], rows[3]);
  const __m128i high01 = _mm_unpackhi_epi8(rows[0], rows[1]);
  const __m128i high23 = _mm_unpackhi_epi8(rows[2], rows[3]);
  // 32 bytes a store, as many as repeat_words<2> loads: a load cannot be served from two stores.
  const auto store = [](std::uint32_t* to, __m128i first, __m128i second) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1));
  };
  store(interleaved, _mm_unpacklo_epi16(low01, low23), _mm_unpackhi_epi16(low01, low23));
  store(interleaved + 8, _mm_unpacklo_epi16(high01, high23), _mm_unpackhi_epi16(high01, high23));
}

// As interleave_bytes, of four whole rows of 16 or 32 bytes that follow each other, for which it
// takes fewer instructions.
template <int row_bytes>
inline void interleave_quad(const std::uint8_t* rows, std::uint8_t* words) {
  // Dwords j of the four rows side by side, then their bytes.
  const __m512i bytes =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m512i first = _mm512_loadu_si512(rows);
  if constexpr (row_bytes == 16) {
    const __m512i dwords = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(words, _mm512_shuffle_epi8(_mm512_permutexvar_epi32(dwords, first), bytes));
  } else {
    static_assert(row_bytes == 32);
    const __m512i second = _mm512_loadu_si512(rows + 64);
    const __m512i low = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
    const __m512i high =
        _mm512_setr_epi32(4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31);
    _mm512_storeu_si512(words,
                        _mm512_shuffle_epi8(_mm512_permutex2var_epi32(first, low, second), bytes));
    _mm512_storeu_si512(words + 64,
                        _mm512_shuffle_epi8(_mm512_permutex2var_epi32(first, high, second), bytes));
  }
}

// Lane i: words[i / n]; n is a power of two up to 8.
template <int n>
inline U repeat_words(const std::uint32_t* words) {
  const U index = lane_index() / static_cast<std::uint32_t>(n);
  __m512i few;
  if constexpr (n == 2) {
    few = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)));
  } else if constexpr (n == 4) {
    few = _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words)));
  } else {
    few = _mm512_castsi128_si512(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(words)));
  }
  return unsigned_lanes(_mm512_permutexvar_epi32(integers(index), few));
}

// first, second := first[0], second[0], first[1], second[1] …
inline void interleave(F& first, F& second) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high =
      _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  const F a = first, b = second;
  first = _mm512_permutex2var_ps(a, low, b);
  second = _mm512_permutex2var_ps(a, high, b);
}
// v := lane 0 of every vector, lane 1 of every vector …
inline void interleave_lanes(F (&v)[2]) { interleave(v[0], v[1]); }
inline void interleave_lanes(F (&v)[4]) {
  interleave(v[0], v[2]);
  interleave(v[1], v[3]);
  interleave(v[0], v[1]);
  interleave(v[2], v[3]);
}

// Running sums of products of bytes, four a lane. Codes are at most 15, so that either operand may
// be the signed one; widen() gives Σ exactly while no partial sum of two products a call passes
// kProductLimit.
typedef U ByteSums;
#if defined(__AVX512VNNI__)
constexpr int kProductLimit = 0x7fffffff;
inline void add_signed_products(ByteSums& sums, U codes, U bytes) {
  sums = unsigned_lanes(_mm512_dpbusd_epi32(integers(sums), integers(codes), integers(bytes)));
}
inline void add_unsigned_products(ByteSums& sums, U codes, U bytes) {
  sums = unsigned_lanes(_mm512_dpbusd_epi32(integers(sums), integers(bytes), integers(codes)));
}
inline I widen(ByteSums sums) { return reinterpret_cast<I>(sums); }
#else
constexpr int kProductLimit = 32767;
inline void add_products(ByteSums& sums, __m512i products) {
  // GCC would re-associate plain sums and spill them.
  __asm__("vpaddw %1, %0, %0" : "+v"(sums) : "v"(products));
}
inline void add_signed_products(ByteSums& sums, U codes, U bytes) {
  add_products(sums, _mm512_maddubs_epi16(integers(codes), integers(bytes)));
}
inline void add_unsigned_products(ByteSums& sums, U codes, U bytes) {
  add_products(sums, _mm512_maddubs_epi16(integers(bytes), integers(codes)));
}
inline I widen(ByteSums sums) {
  return reinterpret_cast<I>(_mm512_madd_epi16(integers(sums), _mm512_set1_epi16(1)));
}
#endif

inline void transpose(F block[kWidth]) {
  F pairs[16], quads[16], octets[16];
  for (int i = 0; i < 8; ++i) {
    pairs[2 * i] = _mm512_unpacklo_ps(block[2 * i], block[2 * i + 1]);
    pairs[2 * i + 1] = _mm512_unpackhi_ps(block[2 * i], block[2 * i + 1]);
  }
  // quads[4g + c]: column 4·lane128 + c of rows 4g … 4g + 3.
  for (int g = 0; g < 4; ++g) {
    for (int i = 0; i < 2; ++i) {
      const F a = pairs[4 * g + i], b = pairs[4 * g + 2 + i];
      quads[4 * g + 2 * i] = _mm512_shuffle_ps(a, b, 0x44);
      quads[4 * g + 2 * i + 1] = _mm512_shuffle_ps(a, b, 0xee);
    }
  }
  // Then a 4 × 4 transpose of the 128-bit lanes for each c.
  for (int c = 0; c < 4; ++c) {
    octets[c] = _mm512_shuffle_f32x4(quads[c], quads[4 + c], 0x88);
    octets[4 + c] = _mm512_shuffle_f32x4(quads[c], quads[4 + c], 0xdd);
    octets[8 + c] = _mm512_shuffle_f32x4(quads[8 + c], quads[12 + c], 0x88);
    octets[12 + c] = _mm512_shuffle_f32x4(quads[8 + c], quads[12 + c], 0xdd);
  }
  for (int c = 0; c < 4; ++c) {
    block[c] = _mm512_shuffle_f32x4(octets[c], octets[8 + c], 0x88);
    block[8 + c] = _mm512_shuffle_f32x4(octets[c], octets[8 + c], 0xdd);
    block[4 + c] = _mm512_shuffle_f32x4(octets[4 + c], octets[12 + c], 0x88);
    block[12 + c] = _mm512_shuffle_f32x4(octets[4 + c], octets[12 + c], 0xdd);
  }
}

}  // namespace
}  // namespace oscar::simd

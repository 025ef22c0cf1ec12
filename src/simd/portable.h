// Vector operations for any CPU: four lanes, which the compiler maps to the baseline's vectors
// (SSE2, NEON) or to scalars.
#pragma once

#define OSCAR_SIMD_WIDTH 4
#include "simd/composed.h"
#include "simd/four_lanes.h"

namespace oscar::simd {
namespace {

// Register blocks for 16 vector registers.
constexpr int kTransformRows = 2, kTransformFewRows = 1;
constexpr int kTransformVectors = 8;  // of few rows
constexpr int kTileRows = 4, kTileVectors = 2;
constexpr int kCodeRows = 3;                                        // rows that share one unpack
constexpr int code_vectors(int rows) { return rows == 1 ? 4 : 2; }  // of tokens
constexpr int code_units(int) { return 1; }                         // of 16 channels

constexpr int kMeanVectors = 1;  // of the mean key's columns, even and odd ones

// Integer operations: query rows, rows of weights, and vectors that share one load of the codes.
constexpr int kByteRows = 3, kWeightRows = 3;
constexpr int byte_vectors(int) { return 1; }
constexpr int weight_vectors(int) { return 1; }

inline F min(F a, F b) { return a < b ? a : b; }
inline F max(F a, F b) { return a > b ? a : b; }
inline U max(U a, U b) { return a > b ? a : b; }
inline F fma(F a, F b, F c) { return a * b + c; }

inline float min(float a, float b) { return a < b ? a : b; }
inline float max(float a, float b) { return a > b ? a : b; }
inline float reduce_min(F v) { return min(min(v[0], v[2]), min(v[1], v[3])); }
inline float reduce_max(F v) { return max(max(v[0], v[2]), max(v[1], v[3])); }
inline std::uint32_t reduce_max(U v) {
  std::uint32_t result = v[0];
  for (int i = 1; i < kWidth; ++i) result = v[i] > result ? v[i] : result;
  return result;
}
inline std::uint32_t reduce_add(U v) { return (v[0] + v[2]) + (v[1] + v[3]); }

// Neighbouring lanes 2i and 2i + 1 change places.
inline F swap_pairs(F v) { return __builtin_shufflevector(v, v, 1, 0, 3, 2); }

// Low byte of every lane.
inline void store_bytes(std::uint8_t* p, U v) {
  for (int i = 0; i < kWidth; ++i) p[i] = static_cast<std::uint8_t>(v[i]);
}
// Low half of every lane.
inline void store_halves(std::uint8_t* p, U v) {
  for (int i = 0; i < kWidth; ++i) {
    const auto half = static_cast<std::uint16_t>(v[i]);
    __builtin_memcpy(p + 2 * i, &half, sizeof half);
  }
}
inline F load_bf16(const std::uint8_t* p) {
  U v{};
  for (int i = 0; i < kWidth; ++i) v[i] = load_bytes<std::uint16_t>(p + 2 * i);
  return from_bits(v << 16);
}

// The low `bits` bits of every lane as a float; higher bits are ignored.
template <int bits>
inline F low_bits_to_float(U v) {
  return __builtin_convertvector(reinterpret_cast<I>(v & ((1u << bits) - 1)), F);
}

// Lane i: bits [bits·i, bits·(i + 1)) of the word as a float. Baselines lack a shift per lane: the
// fields are masked in place and brought down by an exact multiplication.
template <int bits>
inline F fields(std::uint32_t word) {
  const U mask = U{1, 1u << bits, 1u << 2 * bits, 1u << 3 * bits} * ((1u << bits) - 1);
  const F down = {1.0f, 1.0f / (1 << bits), 1.0f / (1 << 2 * bits), 1.0f / (1 << 3 * bits)};
  return __builtin_convertvector(reinterpret_cast<I>(broadcast_bits(word) & mask), F) * down;
}

// Sixteen channels with channels in lanes: low holds their low bits in order, third (3 bits only)
// their third bits.
template <int bits>
inline void load_unit(const std::uint8_t* low, const std::uint8_t* third, F codes[4]) {
  for (std::uint32_t j = 0; j < 4; ++j) {
    if constexpr (bits == 4) {
      codes[j] = fields<4>(load_bytes<std::uint16_t>(low + 2 * j));
    } else {
      codes[j] = fields<2>(low[j]);
    }
    if constexpr (bits == 3) {
      codes[j] += fields<1>(load_bytes<std::uint16_t>(third) >> (4 * j)) * 4.0f;
    }
  }
}

// interleaved[i], i in [0, 16): byte i of the four rows of 16 bytes at base, base + stride, …, in
// this order from the lowest byte.
inline void interleave_bytes(const std::uint8_t* base, std::int64_t stride,
                             std::uint32_t interleaved[16]) {
  for (int i = 0; i < 16; ++i) {
    std::uint32_t word = 0;
    for (int row = 0; row < 4; ++row) word |= std::uint32_t{base[row * stride + i]} << (8 * row);
    interleaved[i] = word;
  }
}

// Running sums of products of bytes, four a lane. Codes are at most 15, so that either operand may
// be the signed one; widen() gives Σ exactly while no partial sum of two products a call passes
// kProductLimit.
typedef std::int16_t ByteSums __attribute__((vector_size(kVectorBytes)));
constexpr int kProductLimit = 32767;
inline void add_signed_products(ByteSums& sums, U codes, U bytes) {
  const auto odd = reinterpret_cast<ByteSums>(bytes) >> 8;
  const auto even = reinterpret_cast<ByteSums>(bytes << 8) >> 8;
  sums += reinterpret_cast<ByteSums>(codes & 0x00ff00ffu) * even +
          reinterpret_cast<ByteSums>((codes >> 8) & 0x00ff00ffu) * odd;
}
inline void add_unsigned_products(ByteSums& sums, U codes, U bytes) {
  sums += reinterpret_cast<ByteSums>(codes & 0x00ff00ffu) *
              reinterpret_cast<ByteSums>(bytes & 0x00ff00ffu) +
          reinterpret_cast<ByteSums>((codes >> 8) & 0x00ff00ffu) *
              reinterpret_cast<ByteSums>((bytes >> 8) & 0x00ff00ffu);
}
inline I widen(ByteSums sums) {
  const I pairs = reinterpret_cast<I>(sums);
  return (pairs >> 16) + ((pairs << 16) >> 16);
}

inline void transpose(F block[kWidth]) {
  const F low01 = __builtin_shufflevector(block[0], block[1], 0, 4, 1, 5);
  const F low23 = __builtin_shufflevector(block[2], block[3], 0, 4, 1, 5);
  const F high01 = __builtin_shufflevector(block[0], block[1], 2, 6, 3, 7);
  const F high23 = __builtin_shufflevector(block[2], block[3], 2, 6, 3, 7);
  block[0] = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
  block[1] = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
  block[2] = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
  block[3] = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
}

// columns[w][lane] = the 32-bit word at base + lane·stride + 4w.
inline void load_word_columns(const std::uint8_t* base, std::int64_t stride, U columns[4]) {
  F block[kWidth];
  for (int i = 0; i < kWidth; ++i) block[i] = from_bits(load_bytes<U>(base + i * stride));
  transpose(block);
  for (int w = 0; w < 4; ++w) columns[w] = bits_of(block[w]);
}

}  // namespace
}  // namespace oscar::simd

// Vector operations for any CPU: the compiler lowers the eight lanes to what the baseline has.
#pragma once

#define OSCAR_SIMD_WIDTH 8
#include "simd/vector.h"

namespace oscar::simd {
namespace {

constexpr int kTransformRows = 2;               // rows of a register block of transform_rows
constexpr int kTileRows = 4, kTileVectors = 1;  // register block of the tile kernels
constexpr int kCodeRows = 4;                    // rows that share one unpack of the codes
constexpr int code_vectors(int) { return 1; }   // vectors of tokens in a block of qk_codes
constexpr int code_units(int) { return 1; }     // 16-channel units in a block of pv_codes

inline F min(F a, F b) { return a < b ? a : b; }
inline F max(F a, F b) { return a > b ? a : b; }
inline U max(U a, U b) { return a > b ? a : b; }
inline F fma(F a, F b, F c) { return a * b + c; }

inline float reduce_min(F v) {
  float result = v[0];
  for (int i = 1; i < kWidth; ++i) result = v[i] < result ? v[i] : result;
  return result;
}
inline float reduce_max(F v) {
  float result = v[0];
  for (int i = 1; i < kWidth; ++i) result = v[i] > result ? v[i] : result;
  return result;
}
inline std::uint32_t reduce_max(U v) {
  std::uint32_t result = v[0];
  for (int i = 1; i < kWidth; ++i) result = v[i] > result ? v[i] : result;
  return result;
}
inline float reduce_add(F v) { return sum_lanes(v); }

// Adds channels in order to the eight lanes (lane = channel mod 8).
inline void add_to_lanes(F8& lanes, F v) { lanes += v; }

inline std::uint32_t reduce_add(U v) {
  std::uint32_t result = 0;
  for (int i = 0; i < kWidth; ++i) result += v[i];
  return result;
}

// The first n lanes from memory, `fill` in the others; n in [0, kWidth].
inline F load_partial(const float* p, int n, float fill) {
  F v = broadcast(fill);
  for (int i = 0; i < kWidth; ++i) {
    if (i < n) v[i] = p[i];
  }
  return v;
}
inline void store_partial(float* p, F v, int n) {
  for (int i = 0; i < n; ++i) p[i] = v[i];
}

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
  for (int i = 0; i < kWidth; ++i) v[i] = load_half(p + 2 * i) << 16;
  return from_bits(v);
}

// The low `bits` bits of every lane as a float; higher bits are ignored.
template <int bits>
inline F low_bits_to_float(U v) {
  return __builtin_convertvector(reinterpret_cast<I>(v & ((1u << bits) - 1)), F);
}

// columns[w][lane] = the 32-bit word at base + lane·stride + 4w.
inline void load_word_columns(const std::uint8_t* base, std::int64_t stride, U columns[4]) {
  for (int w = 0; w < 4; ++w) {
    for (int lane = 0; lane < kWidth; ++lane) {
      columns[w][lane] = load_word(base + lane * stride + 4 * w);
    }
  }
}

inline void transpose(F block[kWidth]) {
  for (int i = 0; i < kWidth; ++i) {
    for (int j = 0; j < i; ++j) {
      const float swapped = block[i][j];
      block[i][j] = block[j][i];
      block[j][i] = swapped;
    }
  }
}

}  // namespace
}  // namespace oscar::simd

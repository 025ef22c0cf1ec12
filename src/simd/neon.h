// Vector operations for NEON, which every AArch64 has, and its dot product where the compiler has
// it: four lanes.
#pragma once

#include <arm_neon.h>

#define OSCAR_SIMD_WIDTH 4
#include "simd/composed.h"
#include "simd/four_lanes.h"

namespace oscar::simd {
namespace {

// Register blocks for 32 vector registers.
constexpr int kTransformRows = 4, kTransformFewRows = 2;
constexpr int kTransformVectors = 8;  // of few rows
constexpr int kTileRows = 6, kTileVectors = 4;
constexpr int kCodeRows = 6;                                        // rows that share one unpack
constexpr int code_vectors(int rows) { return rows <= 4 ? 4 : 2; }  // of tokens
constexpr int code_units(int rows) { return rows <= 2 ? 2 : 1; }    // of 16 channels

constexpr int kMeanVectors = 1;  // of the mean key's columns, even and odd ones

// Integer operations: query rows, rows of weights, and vectors that share one load of the codes.
constexpr int kByteRows = 6, kWeightRows = 6;
#if defined(__ARM_FEATURE_DOTPROD)
constexpr int byte_vectors(int) { return 2; }
constexpr int weight_vectors(int rows) { return rows <= 3 ? 4 : 2; }
#else
constexpr int byte_vectors(int rows) { return rows <= 3 ? 2 : 1; }
constexpr int weight_vectors(int rows) { return rows <= 3 ? 2 : 1; }
#endif

// Not FMIN and FMAX: equal zeros of either sign and NaN give b, as on every other instruction set.
inline F min(F a, F b) { return a < b ? a : b; }
inline F max(F a, F b) { return a > b ? a : b; }
inline U max(U a, U b) { return vmaxq_u32(a, b); }
inline F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }

// A NaN among numbers is passed over.
inline float reduce_min(F v) { return vminnmvq_f32(v); }
inline float reduce_max(F v) { return vmaxnmvq_f32(v); }
inline std::uint32_t reduce_max(U v) { return vmaxvq_u32(v); }
inline std::uint32_t reduce_add(U v) { return vaddvq_u32(v); }

// Low byte of every lane.
inline void store_bytes(std::uint8_t* p, U v) {
  const uint8x8_t bytes = vreinterpret_u8_u16(vmovn_u32(v));
  const std::uint32_t four = vget_lane_u32(vreinterpret_u32_u8(vuzp1_u8(bytes, bytes)), 0);
  __builtin_memcpy(p, &four, sizeof four);
}
// Low half of every lane.
inline void store_halves(std::uint8_t* p, U v) { vst1_u8(p, vreinterpret_u8_u16(vmovn_u32(v))); }
inline F load_bf16(const std::uint8_t* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}

// The low `bits` bits of every lane as a float; higher bits are ignored.
template <int bits>
inline F low_bits_to_float(U v) {
  return vcvtq_f32_u32(v & ((1u << bits) - 1));
}

// A shift to the right by another count in every lane.
inline U shift_right(U v, U counts) {
  return vshlq_u32(v, vnegq_s32(vreinterpretq_s32_u32(counts)));
}

// Sixteen channels with channels in lanes: low holds their low bits in order, third (3 bits only)
// their third bits.
template <int bits>
inline void load_unit(const std::uint8_t* low, const std::uint8_t* third, F codes[4]) {
  const U lane = lane_index();
  for (std::uint32_t j = 0; j < 4; ++j) {
    U word;
    if constexpr (bits == 4) {
      word = shift_right(broadcast_bits(load_bytes<std::uint32_t>(low + 4 * (j / 2))),
                         4u * lane + 16u * (j % 2));
    } else {
      word = shift_right(broadcast_bits(load_bytes<std::uint32_t>(low)), 2u * lane + 8u * j);
    }
    if constexpr (bits == 3) {
      const U third_bits = broadcast_bits(load_bytes<std::uint16_t>(third));
      word = (word & 3u) | (shift_right(third_bits, lane + 4u * j) << 2);
    }
    codes[j] = low_bits_to_float<bits>(word);
  }
}

// Neighbouring lanes 2i and 2i + 1 change places.
inline F swap_pairs(F v) { return vrev64q_f32(v); }

// interleaved[i], i in [0, 16): byte i of the four rows of 16 bytes at base, base + stride, …, in
// this order from the lowest byte.
inline void interleave_bytes(const std::uint8_t* base, std::int64_t stride,
                             std::uint32_t interleaved[16]) {
  const uint8x16x4_t rows = {{vld1q_u8(base), vld1q_u8(base + stride), vld1q_u8(base + 2 * stride),
                              vld1q_u8(base + 3 * stride)}};
  vst4q_u8(reinterpret_cast<std::uint8_t*>(interleaved), rows);
}

// Running sums of products of bytes, four a lane. Codes are at most 15, so that either operand may
// be the signed one; widen() gives Σ exactly while no partial sum of two products a call passes
// kProductLimit.
#if defined(__ARM_FEATURE_DOTPROD)
typedef U ByteSums;
constexpr int kProductLimit = 0x7fffffff;
inline void add_signed_products(ByteSums& sums, U codes, U bytes) {
  sums = vreinterpretq_u32_s32(vdotq_s32(vreinterpretq_s32_u32(sums), vreinterpretq_s8_u32(codes),
                                         vreinterpretq_s8_u32(bytes)));
}
inline void add_unsigned_products(ByteSums& sums, U codes, U bytes) {
  sums = vdotq_u32(sums, vreinterpretq_u8_u32(codes), vreinterpretq_u8_u32(bytes));
}
inline I widen(ByteSums sums) { return reinterpret_cast<I>(sums); }
#else
// A product of the lower and one of the upper two lanes in 16 bits each: a multiplication and
// addition in one instruction, where sums of pairs would take two more.
struct ByteSums {
  int16x8_t low{}, high{};
};
constexpr int kProductLimit = 32767;
inline void add_signed_products(ByteSums& sums, U codes, U bytes) {
  const int8x16_t a = vreinterpretq_s8_u32(codes), b = vreinterpretq_s8_u32(bytes);
  sums.low = vmlal_s8(sums.low, vget_low_s8(a), vget_low_s8(b));
  sums.high = vmlal_high_s8(sums.high, a, b);
}
inline void add_unsigned_products(ByteSums& sums, U codes, U bytes) {
  const uint8x16_t a = vreinterpretq_u8_u32(codes), b = vreinterpretq_u8_u32(bytes);
  const uint16x8_t low = vreinterpretq_u16_s16(sums.low), high = vreinterpretq_u16_s16(sums.high);
  sums.low = vreinterpretq_s16_u16(vmlal_u8(low, vget_low_u8(a), vget_low_u8(b)));
  sums.high = vreinterpretq_s16_u16(vmlal_high_u8(high, a, b));
}
inline I widen(ByteSums sums) {
  return reinterpret_cast<I>(vpaddq_s32(vpaddlq_s16(sums.low), vpaddlq_s16(sums.high)));
}
#endif

inline void transpose(U block[kWidth]) {
  const U even01 = vtrn1q_u32(block[0], block[1]), odd01 = vtrn2q_u32(block[0], block[1]);
  const U even23 = vtrn1q_u32(block[2], block[3]), odd23 = vtrn2q_u32(block[2], block[3]);
  const auto low = [](U a, U b) {
    return vreinterpretq_u32_u64(vtrn1q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)));
  };
  const auto high = [](U a, U b) {
    return vreinterpretq_u32_u64(vtrn2q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)));
  };
  block[0] = low(even01, even23);
  block[1] = low(odd01, odd23);
  block[2] = high(even01, even23);
  block[3] = high(odd01, odd23);
}
inline void transpose(F block[kWidth]) {
  U words[kWidth];
  for (int i = 0; i < kWidth; ++i) words[i] = bits_of(block[i]);
  transpose(words);
  for (int i = 0; i < kWidth; ++i) block[i] = from_bits(words[i]);
}

// columns[w][lane] = the 32-bit word at base + lane·stride + 4w.
inline void load_word_columns(const std::uint8_t* base, std::int64_t stride, U columns[4]) {
  for (int i = 0; i < kWidth; ++i) columns[i] = load_bytes<U>(base + i * stride);
  transpose(columns);
}

}  // namespace
}  // namespace oscar::simd

// Scalar and conversion instructions, one wrapper each.
#pragma once

#include <cstdint>

namespace oscar::cuda::ptx {

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
}

// This thread's lane, read again at every call: what depends on it is not kept in registers.
__device__ __forceinline__ int lane_again() {
  int lane;
  asm volatile("mov.u32 %0,%%laneid;" : "=r"(lane));
  return lane;
}

// Two floats to two halves, `low` in the low bits.
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  uint32_t d;
  asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

// To the left, by 0 … 31 bits.
__device__ __forceinline__ uint32_t rotated(uint32_t x, int bits) {
  return __funnelshift_l(x, x, static_cast<uint32_t>(bits));
}

// Bytes of a (0 … 3) and b (4 … 7) by the half bytes of a selector; 8 and more: the byte's highest
// bit, eight times.
__device__ __forceinline__ uint32_t permuted_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t d;
  asm("prmt.b32 %0,%1,%2,%3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
  return d;
}

// Any function of three bits, for every bit of three words: `table` is the same function of kA, kB,
// kC.
inline constexpr int kA = 0xf0, kB = 0xcc, kC = 0xaa;
template <int table>
__device__ __forceinline__ uint32_t logic(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("lop3.b32 %0,%1,%2,%3,%4;" : "=r"(d) : "r"(a), "r"(b), "r"(c), "n"(table & 255));
  return d;
}
// Bits of a where the mask has ones, else of b.
__device__ __forceinline__ uint32_t selected_bits(uint32_t a, uint32_t b, uint32_t mask) {
  return logic<(kA & kC) | (kB & ~kC)>(a, b, mask);
}

// Larger of each pair of BF16.
__device__ __forceinline__ uint32_t max_bf16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("max.bf16x2 %0,%1,%2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// The two BF16 of a word as floats.
__device__ __forceinline__ float low_bf16(uint32_t x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float high_bf16(uint32_t x) { return __uint_as_float(x & 0xffff0000u); }

__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float square_root_approx(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
}

// 1.0 in each half where a ≤ b, else 0.
__device__ __forceinline__ uint32_t at_most_f16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("set.le.f16x2.f16x2 %0,%1,%2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// 1.0 in each half where a ≥ b, else 0.
__device__ __forceinline__ uint32_t at_least_f16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("set.ge.f16x2.f16x2 %0,%1,%2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// a·b + c of each half, at least 0 and at most 1.
__device__ __forceinline__ uint32_t fma_saturated_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.sat.f16x2 %0,%1,%2,%3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

__device__ __forceinline__ float float_from_f16(uint32_t half) {
  float y;
  asm("cvt.f32.f16 %0,%1;" : "=f"(y) : "h"(static_cast<uint16_t>(half)));
  return y;
}
__device__ __forceinline__ uint32_t f16_from_float(float x) {
  uint16_t half;
  asm("cvt.rn.f16.f32 %0,%1;" : "=h"(half) : "f"(x));
  return half;
}

}  // namespace oscar::cuda::ptx

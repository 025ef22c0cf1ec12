// Matrix instructions, one wrapper each. Fragments as in the PTX ISA, "Matrix fragments for mma": g
// = lane / 4, t = lane % 4.
//   A rows g and g + 8;  B column g;  C rows g, g + 8 and columns 2t, 2t + 1.
#pragma once

#include <cstdint>

namespace oscar::cuda::ptx {

// C += A·B, A 16×32 unsigned bytes, B 32×8 signed bytes.
__device__ __forceinline__ void mma_u8s8_k32(int (&c)[4], uint4 a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// C += A·B, A 16×16 unsigned bytes, B 16×8 signed bytes.
__device__ __forceinline__ void mma_u8s8_k16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 "
      "{%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
}

// C += A·B, A 16×16 and B 16×8 of float16; denormals are exact.
__device__ __forceinline__ void mma_f16(float (&c)[4], uint4 a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// The same with sums of float16: c[0] of row g, c[1] of row g + 8.
__device__ __forceinline__ void mma_f16_f16(uint32_t (&c)[2], uint4 a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 "
      "{%0,%1},{%2,%3,%4,%5},{%6,%7},{%0,%1};"
      : "+r"(c[0]), "+r"(c[1])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// C += A·B, A 16×16 and B 16×8 of bfloat16.
__device__ __forceinline__ void mma_bf16(float (&c)[4], uint4 a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// Transposes an 8×8 matrix of halves held one row in four lanes.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t a) {
  uint32_t d;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0,%1;" : "=r"(d) : "r"(a));
  return d;
}

// Four 8×8 matrices of halves; lane l gives the shared address of row l % 8 of matrix l / 8.
__device__ __forceinline__ uint4 load_matrix_x4(uint32_t address) {
  uint4 d;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w)
               : "r"(address)
               : "memory");
  return d;
}

// Four 8×8 matrices of halves, transposed; lane l gives the shared address of row l % 8 of matrix l
// / 8.
__device__ __forceinline__ uint4 load_matrix_x4_transposed(uint32_t address) {
  uint4 d;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w)
               : "r"(address)
               : "memory");
  return d;
}

}  // namespace oscar::cuda::ptx

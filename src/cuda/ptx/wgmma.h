// Hopper's matrix instructions of four warps (sm_90a), one wrapper each. A warp w of the four has
// rows 16w to 16w + 15 of A and C, in the fragments of ptx/mma.h.
#pragma once

#include <cstdint>

namespace oscar::cuda::ptx {

// Registers that a product will use are ready.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// All products are done.
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// An operand B in shared memory without swizzling: 8×8 matrices of halves, 128 bytes, a row of 16
// bytes a column of B. k_stride, n_stride: bytes from a matrix to the next in k and in n.
__device__ __forceinline__ uint64_t wgmma_operand(uint32_t address, uint32_t k_stride,
                                                  uint32_t n_stride) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) |
         static_cast<uint64_t>(k_stride >> 4) << 16 | static_cast<uint64_t>(n_stride >> 4) << 32;
}

#define OSCAR_C4(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])

// C += A·B, A 64×16 and B 16×128 (n128) or 16×64 (n64) of the type. is_first: C = A·B.
#define OSCAR_WGMMA(type)                                                                         \
  __device__ __forceinline__ void wgmma_##type##_n128(float(&c)[16][4], uint4 a, uint64_t b,      \
                                                      bool is_first) {                            \
    asm volatile(                                                                                 \
        "{\n.reg .pred p;\n"                                                                      \
        "setp.eq.u32 p,%69,0;\n"                                                                  \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." #type "." #type                            \
        " "                                                                                       \
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
        "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,"    \
        "%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"           \
        "{%64,%65,%66,%67},%68,p,1,1,0;\n}"                                                       \
        : OSCAR_C4(0), OSCAR_C4(1), OSCAR_C4(2), OSCAR_C4(3), OSCAR_C4(4), OSCAR_C4(5),           \
          OSCAR_C4(6), OSCAR_C4(7), OSCAR_C4(8), OSCAR_C4(9), OSCAR_C4(10), OSCAR_C4(11),         \
          OSCAR_C4(12), OSCAR_C4(13), OSCAR_C4(14), OSCAR_C4(15)                                  \
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(static_cast<uint32_t>(is_first)));  \
  }                                                                                               \
  __device__ __forceinline__ void wgmma_##type##_n64(float(&c)[8][4], uint4 a, uint64_t b,        \
                                                     bool is_first) {                             \
    asm volatile(                                                                                 \
        "{\n.reg .pred p;\n"                                                                      \
        "setp.eq.u32 p,%37,0;\n"                                                                  \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." #type "." #type                             \
        " "                                                                                       \
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
        "%24,%25,%26,%27,%28,%29,%30,%31},"                                                       \
        "{%32,%33,%34,%35},%36,p,1,1,0;\n}"                                                       \
        : OSCAR_C4(0), OSCAR_C4(1), OSCAR_C4(2), OSCAR_C4(3), OSCAR_C4(4), OSCAR_C4(5),           \
          OSCAR_C4(6), OSCAR_C4(7)                                                                \
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(static_cast<uint32_t>(is_first)));  \
  }
OSCAR_WGMMA(bf16)
OSCAR_WGMMA(f16)
#undef OSCAR_WGMMA
#undef OSCAR_C4

}  // namespace oscar::cuda::ptx

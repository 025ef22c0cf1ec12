// Shared and global memory instructions, one wrapper each. `address` is a 32-bit shared-memory
// address.
#pragma once

#include <cstdint>

namespace oscar::cuda::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ uint4 load_shared_16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address));
  return v;
}

__device__ __forceinline__ uint2 load_shared_8(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1},[%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
  return v;
}

__device__ __forceinline__ uint32_t load_shared_4(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0,[%1];" : "=r"(v) : "r"(address));
  return v;
}

__device__ __forceinline__ void store_shared_2(uint32_t address, uint16_t v) {
  asm volatile("st.shared.u16 [%0],%1;" ::"r"(address), "h"(v) : "memory");
}

__device__ __forceinline__ void store_shared_8(uint32_t address, uint2 v) {
  asm volatile("st.shared.v2.u32 [%0],{%1,%2};" ::"r"(address), "r"(v.x), "r"(v.y) : "memory");
}

__device__ __forceinline__ void store_shared_16(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0],{%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

// 16 bytes of global memory to shared memory; bytes 0: zeros instead. Visible to this thread after
// copy_async_wait.
__device__ __forceinline__ void copy_async_16(uint32_t address, const void* from, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(address), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// Adds one with acquire and release at GPU scope: orders what this block wrote before what the
// block that sees it reads.
__device__ __forceinline__ int add_one_acq_rel(int* counter) {
  int old;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0,[%1],1;" : "=r"(old) : "l"(counter) : "memory");
  return old;
}

}  // namespace oscar::cuda::ptx

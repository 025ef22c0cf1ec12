// Hopper's bulk copies, their barriers, and programmatic launch: one wrapper per instruction. sm_90
// and later.
#pragma once

#include <cstdint>

namespace oscar::cuda::ptx {

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0],%1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _,[%0];" ::"r"(barrier) : "memory");
}

// One arrival that also announces `bytes` of copies.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _,[%0],%1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ bool barrier_try_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared.b64 p,[%1],%2;\n"
      "selp.b32 %0,1,0,p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}

// Cache policy for data read once, first to leave the L2: what createpolicy.fractional gives for
// L2::evict_first and all of the lines.
inline constexpr uint64_t kEvictFirst = 0x12f0000000000000ull;
inline constexpr uint64_t kEvictNormal = 0x1000000000000000ull;  // L2::evict_normal: read again

// Global to shared memory; both 16-byte aligned, bytes a multiple of 16; completes on the barrier.
__device__ __forceinline__ void bulk_copy(uint32_t dst, const void* src, uint32_t bytes,
                                          uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0],[%1],%2,[%3],%4;" ::"r"(dst),
      "l"(src), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// Orders this thread's shared-memory writes before later bulk copies into the same place.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Programmatic launch: the next kernel may start; wait for the previous kernel's writes.
__device__ __forceinline__ void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void wait_for_previous_kernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

}  // namespace oscar::cuda::ptx

#include "cuda/encode/copy_keys.cuh"
#include "cuda/encode/copy_keys.h"

namespace oscar::cuda::encode {
namespace {

constexpr int kCopyThreads = 256;

// A warp takes the heads of one token.
__global__ void __launch_bounds__(kCopyThreads)
    copy_keys_kernel(const __grid_constant__ EncodeParams params) {
  const std::int64_t token = std::int64_t{blockIdx.x} * (kCopyThreads / 32) + (threadIdx.x >> 5);
  if (token >= params.num_tokens) return;
  const std::int64_t slot = params.copy_slots[token];
  if (slot < 0) return;
  const EncodeSide& side = params.sides[0];
  const int head_dim = side.plane.head_dim;
  for (int head = 0; head < params.num_kv_heads; ++head) {
    const auto* row = reinterpret_cast<const uint32_t*>(side.rows + token * side.token_stride +
                                                        head * side.head_stride);
    auto* copy = reinterpret_cast<uint32_t*>(copy_at(params, slot, head, 0, head_dim));
    for (int i = threadIdx.x & 31; i < head_dim / 2; i += 32) copy[i] = finite_pair(row[i]);
  }
}

}  // namespace

cudaError_t run_copy_keys(const EncodeParams& params, cudaStream_t stream) {
  if (params.copies == nullptr || !params.raw_key_copies || params.sides[0].rows == nullptr) {
    return cudaSuccess;
  }
  constexpr std::int64_t kWarps = kCopyThreads / 32;
  const auto blocks = static_cast<unsigned>((params.num_tokens + kWarps - 1) / kWarps);
  copy_keys_kernel<<<blocks, kCopyThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace oscar::cuda::encode

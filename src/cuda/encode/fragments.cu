#include "cuda/encode/fragments.h"

#include <algorithm>

#include "cuda/encode/fragment_kernel.cuh"

namespace oscar::cuda::encode {
namespace {

constexpr std::int64_t kMostFewTokens = 512;

template <int kHeadDim, bool kTransform>
cudaError_t launch(const EncodeParams& params, int num_sms, cudaStream_t stream) {
  const auto heads = static_cast<unsigned>(params.num_kv_heads);
  if (params.num_tokens <= kMostFewTokens) {
    const dim3 grid(static_cast<unsigned>((params.num_tokens + kFewTokens - 1) / kFewTokens), heads,
                    2);
    encode_few_kernel<kHeadDim, kTransform><<<grid, 32 * kFewWarps, 0, stream>>>(params);
    return cudaGetLastError();
  }
  const int shared = kTransform ? static_cast<int>(kTransformParts * transform_part_bytes(kHeadDim))
                                : 0;
  const auto kernel = encode_fragments_kernel<kHeadDim, kTransform>;
  if (shared > 48 * 1024) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (error != cudaSuccess) return error;
  }
  const std::int64_t tiles = params.num_tokens / kSlab + 2;
  const std::int64_t most = (tiles + kFragmentWarps - 1) / kFragmentWarps;
  const std::int64_t wanted = std::max<std::int64_t>(1, fragment_blocks(kTransform) * num_sms / (2 * std::int64_t{heads}));
  const dim3 grid(static_cast<unsigned>(std::min(most, wanted)), heads, 2);
  kernel<<<grid, kFragmentThreads, static_cast<std::size_t>(shared), stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

bool serves(const EncodeSide& side) noexcept {
  const DevicePlane& plane = side.plane;
  if (side.transform != nullptr) return false;
  if (side.transform_image == nullptr && side.mean != nullptr) return false;
  return (plane.head_dim == 64 || plane.head_dim == 128) && plane.group_size == plane.head_dim &&
         plane.permuted;
}

cudaError_t run_fragments(const EncodeParams& params, int head_dim, bool has_transform, int num_sms,
                          cudaStream_t stream) {
  if (head_dim == 64) {
    return has_transform ? launch<64, true>(params, num_sms, stream)
                         : launch<64, false>(params, num_sms, stream);
  }
  return has_transform ? launch<128, true>(params, num_sms, stream)
                       : launch<128, false>(params, num_sms, stream);
}

}  // namespace oscar::cuda::encode

#include <algorithm>

#include "cuda/encode/fragment_kernel.cuh"
#include "cuda/encode/fragments.h"

namespace oscar::cuda::encode {
namespace {

constexpr std::int64_t kMostFewTokens = 512;

template <int kHeadDim, Source kSource>
cudaError_t launch(const EncodeParams& params, int num_sms, cudaStream_t stream) {
  const auto heads = static_cast<unsigned>(params.num_kv_heads);
  if (params.num_tokens <= kMostFewTokens) {
    const dim3 grid(static_cast<unsigned>((params.num_tokens + kFewTokens - 1) / kFewTokens), heads,
                    2);
    encode_few_kernel<kHeadDim, kSource><<<grid, 32 * kFewWarps, 0, stream>>>(params);
    return cudaGetLastError();
  }
  constexpr int kThreads = kFragmentThreads<kSource>, kWarps = kThreads / 32;
  int shared = 2 * kRowBytes<kHeadDim, kSource>;
  if (kSource != Source::kRotated) {
    shared += static_cast<int>(kTransformParts * transform_part_bytes(kHeadDim));
  }
  const auto kernel = encode_fragments_kernel<kHeadDim, kSource>;
  if (shared > 48 * 1024) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (error != cudaSuccess) return error;
  }
  const std::int64_t tiles = params.num_tokens / kSlab + 2;
  const std::int64_t most = (tiles + kWarps - 1) / kWarps;
  const std::int64_t wanted = std::max<std::int64_t>(1, num_sms / (2 * std::int64_t{heads}));
  const dim3 grid(static_cast<unsigned>(std::min(most, wanted)), heads, 2);
  kernel<<<grid, kThreads, static_cast<std::size_t>(shared), stream>>>(params);
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

Source source_of(const EncodeSide& side) noexcept {
  return side.transform_image == nullptr ? Source::kRotated
         : side.mean == nullptr          ? Source::kTransform
                                         : Source::kLessMean;
}

template <int kHeadDim>
cudaError_t launch(const EncodeParams& params, Source source, int num_sms, cudaStream_t stream) {
  return source == Source::kRotated ? launch<kHeadDim, Source::kRotated>(params, num_sms, stream)
         : source == Source::kTransform
             ? launch<kHeadDim, Source::kTransform>(params, num_sms, stream)
             : launch<kHeadDim, Source::kLessMean>(params, num_sms, stream);
}

cudaError_t run_fragments(const EncodeParams& params, int head_dim, Source source, int num_sms,
                          cudaStream_t stream) {
  return head_dim == 64 ? launch<64>(params, source, num_sms, stream)
                        : launch<128>(params, source, num_sms, stream);
}

}  // namespace oscar::cuda::encode

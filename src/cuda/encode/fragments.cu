#include <algorithm>

#include "cuda/encode/fragment_kernel.cuh"
#include "cuda/encode/fragments.h"
#include "cuda/encode/launch_many.h"
#include "cuda/sm90/encode/run_packed.h"

namespace oscar::cuda::encode {
namespace {

constexpr std::int64_t kMostFewTokens = 512;

template <int kHeadDim, Source kSource>
cudaError_t launch(const EncodeParams& params, bool is_packed, const Card& card,
                   cudaStream_t stream) {
  if (params.num_tokens <= kMostFewTokens) {
    const dim3 grid(static_cast<unsigned>((params.num_tokens + kFewTokens - 1) / kFewTokens),
                    static_cast<unsigned>(params.num_kv_heads), 2);
    if (is_packed) {
      encode_few_kernel<kHeadDim, kSource, true><<<grid, 32 * kFewWarps, 0, stream>>>(params);
    } else {
      encode_few_kernel<kHeadDim, kSource, false><<<grid, 32 * kFewWarps, 0, stream>>>(params);
    }
    return cudaGetLastError();
  }
  const int image_bytes = kSource == Source::kRotated
                              ? 0
                              : static_cast<int>(kTransformParts * transform_part_bytes(kHeadDim));
  const int packed_bytes = image_bytes + kPackedTableBytes<kHeadDim, kSource>;
  if (is_packed) {
    if (kSource != Source::kRotated && card.compute_capability == 90 && sm90::has_code()) {
      return sm90::run_packed(params, kHeadDim, kSource == Source::kLessMean, card, stream);
    }
    return launch_many(encode_packed_kernel<kHeadDim, kSource, WarpProduct>, params,
                       packed_threads<kHeadDim, kSource>(card.compute_capability) / 32, 1,
                       kPackedWarpBytes<kHeadDim, kSource>, packed_bytes,
                       card, stream);
  }
  constexpr int kWarps = kFragmentThreads<kSource> / 32;  // no fewer
  return launch_many(encode_fragments_kernel<kHeadDim, kSource>, params, kWarps, kWarps,
                     2 * kRowBytes<kHeadDim, kSource> / kWarps, image_bytes, card, stream);
}

template <int kHeadDim>
cudaError_t launch(const EncodeParams& params, Source source, bool is_packed, const Card& card,
                   cudaStream_t stream) {
  return source == Source::kRotated
             ? launch<kHeadDim, Source::kRotated>(params, is_packed, card, stream)
         : source == Source::kTransform
             ? launch<kHeadDim, Source::kTransform>(params, is_packed, card, stream)
             : launch<kHeadDim, Source::kLessMean>(params, is_packed, card, stream);
}

}  // namespace

bool serves(const EncodeSide& side) noexcept {
  const DevicePlane& plane = side.plane;
  if (side.transform != nullptr) return false;
  if (side.transform_image == nullptr && side.mean != nullptr) return false;
  return (plane.head_dim == 64 || plane.head_dim == 128) && plane.group_size == plane.head_dim &&
         plane.permuted;
}

FragmentRoute route_of(const EncodeSide& side) noexcept {
  const Source source = side.transform_image == nullptr ? Source::kRotated
                        : side.mean == nullptr          ? Source::kTransform
                                                        : Source::kLessMean;
  return {source, side.plane.head_dim, side.plane.bits == 2};
}

cudaError_t run_fragments(const EncodeParams& params, const FragmentRoute& route,
                          cudaStream_t stream) {
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  const auto read = [&](cudaDeviceAttr name) {
    int value = 0;
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&value, name, device);
    return value;
  };
  Card card;
  card.num_sms = read(cudaDevAttrMultiProcessorCount);
  card.shared_bytes = read(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  card.compute_capability =
      10 * read(cudaDevAttrComputeCapabilityMajor) + read(cudaDevAttrComputeCapabilityMinor);
  if (error != cudaSuccess) return error;
  return route.head_dim == 64 ? launch<64>(params, route.source, route.is_packed, card, stream)
                              : launch<128>(params, route.source, route.is_packed, card, stream);
}

}  // namespace oscar::cuda::encode

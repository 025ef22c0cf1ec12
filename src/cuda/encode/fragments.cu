#include <algorithm>

#include "cuda/encode/copy_keys.h"
#include "cuda/encode/fragment_kernel.cuh"
#include "cuda/encode/fragments.h"
#include "cuda/encode/launch_many.h"
#include "cuda/sm90/encode/run_packed.h"

namespace oscar::cuda::encode {
namespace {

constexpr std::int64_t kMostFewTokens = 512;

template <int kHeadDim>
cudaError_t launch_words(const EncodeParams& params, const Card& card, cudaStream_t stream) {
  const auto kernel = encode_words_kernel<kHeadDim>;
  constexpr int kBytes = kWordBlockBytes<kHeadDim>, kWarps = kWordThreads / 32;
  static_assert(kBytes <= 48 * 1024);
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  if (error != cudaSuccess) return error;
  const std::int64_t tiles = params.num_tokens / kSlab + 2;
  const std::int64_t most = (tiles + kWarps - 1) / kWarps;
  constexpr int kBlocks = 4 * kWordWaves;  // of a multiprocessor, in all
  const std::int64_t wanted =
      std::max<std::int64_t>(1, card.num_sms * kBlocks / (2 * std::int64_t{params.num_kv_heads}));
  const dim3 grid(static_cast<unsigned>(std::min(most, wanted)),
                  static_cast<unsigned>(params.num_kv_heads), 2);
  kernel<<<grid, kWordThreads, kBytes, stream>>>(params);
  return cudaGetLastError();
}

template <int kHeadDim, Source kSource>
cudaError_t launch(const EncodeParams& params, Coding coding, const Card& card,
                   cudaStream_t stream) {
  if (params.num_tokens <= kMostFewTokens) {
    const dim3 grid(static_cast<unsigned>((params.num_tokens + kFewTokens - 1) / kFewTokens),
                    static_cast<unsigned>(params.num_kv_heads), 2);
    const auto kernel =
        coding == Coding::kPacked    ? encode_few_kernel<kHeadDim, kSource, Coding::kPacked>
        : coding == Coding::kTrellis ? encode_few_kernel<kHeadDim, kSource, Coding::kTrellis>
                                     : encode_few_kernel<kHeadDim, kSource, Coding::kFloat>;
    kernel<<<grid, 32 * kFewWarps, 0, stream>>>(params);
    return cudaGetLastError();
  }
  const cudaError_t copied = run_copy_keys(params, stream);
  if (copied != cudaSuccess) return copied;
  if (coding == Coding::kTrellis) return run_trellis(params, kHeadDim, kSource, card, stream);
  const int image_bytes = kSource == Source::kRotated
                              ? 0
                              : static_cast<int>(kTransformParts * transform_part_bytes(kHeadDim));
  if (coding == Coding::kPacked) {
    if constexpr (kSource == Source::kRotated) {
      return launch_words<kHeadDim>(params, card, stream);
    } else {
      if (card.compute_capability == 90 && sm90::has_code()) {
        return sm90::run_packed(params, kHeadDim, kSource == Source::kLessMean, card, stream);
      }
      return launch_many(encode_packed_kernel<kHeadDim, kSource, WarpProduct>, params,
                         packed_threads<kHeadDim, kSource>(card.compute_capability) / 32, 1,
                         kPackedWarpBytes<kHeadDim, kSource>,
                         image_bytes + kPackedTableBytes<kHeadDim, kSource>, card, stream);
    }
  }
  constexpr int kWarps = kFragmentThreads<kSource> / 32;  // no fewer
  return launch_many(encode_fragments_kernel<kHeadDim, kSource>, params, kWarps, kWarps,
                     2 * kRowBytes<kHeadDim, kSource> / kWarps, image_bytes, card, stream);
}

template <int kHeadDim>
cudaError_t launch(const EncodeParams& params, Source source, Coding coding, const Card& card,
                   cudaStream_t stream) {
  return source == Source::kRotated
             ? launch<kHeadDim, Source::kRotated>(params, coding, card, stream)
         : source == Source::kTransform
             ? launch<kHeadDim, Source::kTransform>(params, coding, card, stream)
             : launch<kHeadDim, Source::kLessMean>(params, coding, card, stream);
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
  const Coding coding = side.plane.trellis     ? Coding::kTrellis
                        : side.plane.bits == 2 ? Coding::kPacked
                                               : Coding::kFloat;
  return {source, side.plane.head_dim, coding};
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
  return route.head_dim == 64 ? launch<64>(params, route.source, route.coding, card, stream)
                              : launch<128>(params, route.source, route.coding, card, stream);
}

}  // namespace oscar::cuda::encode

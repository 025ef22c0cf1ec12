#include "cuda/encode/launch_many.h"
#include "cuda/encode/trellis_kernel.cuh"

namespace oscar::cuda::encode {
namespace {

template <int kHeadDim, Source kSource>
cudaError_t launch(const EncodeParams& params, const Card& card, cudaStream_t stream) {
  const int image_bytes = kSource == Source::kRotated
                              ? 0
                              : static_cast<int>(kTransformParts * transform_part_bytes(kHeadDim));
  return launch_many(encode_trellis_kernel<kHeadDim, kSource>, params, kTrellisThreads / 32, 1,
                     kTrellisWarpBytes<kHeadDim>, image_bytes, card, stream);
}

template <int kHeadDim>
cudaError_t launch(const EncodeParams& params, Source source, const Card& card,
                   cudaStream_t stream) {
  return source == Source::kRotated     ? launch<kHeadDim, Source::kRotated>(params, card, stream)
         : source == Source::kTransform ? launch<kHeadDim, Source::kTransform>(params, card, stream)
                                        : launch<kHeadDim, Source::kLessMean>(params, card, stream);
}

}  // namespace

cudaError_t run_trellis(const EncodeParams& params, int head_dim, Source source, const Card& card,
                        cudaStream_t stream) {
  return head_dim == 64 ? launch<64>(params, source, card, stream)
                        : launch<128>(params, source, card, stream);
}

}  // namespace oscar::cuda::encode

#include "cuda/sm90/encode/group_product.cuh"
#include "cuda/sm90/encode/run_packed.h"

namespace oscar::cuda::sm90 {
namespace {

template <int kHeadDim, encode::Source kSource>
cudaError_t launch(const EncodeParams& params, const encode::Card& card, cudaStream_t stream) {
  return encode::launch_many(encode::encode_packed_kernel<kHeadDim, kSource, GroupProduct>, params,
                             encode::kPackedThreads / 32, 4,
                             encode::kPackedWarpBytes<kHeadDim, kSource>,
                             static_cast<int>(kTransformParts * transform_part_bytes(kHeadDim)) +
                                 encode::kPackedTableBytes<kHeadDim, kSource>,
                             card, stream);
}

}  // namespace

bool has_code() noexcept { return true; }

cudaError_t run_packed(const EncodeParams& params, int head_dim, bool has_mean,
                       const encode::Card& card, cudaStream_t stream) {
  using encode::Source;
  if (head_dim == 64) {
    return has_mean ? launch<64, Source::kLessMean>(params, card, stream)
                    : launch<64, Source::kTransform>(params, card, stream);
  }
  return has_mean ? launch<128, Source::kLessMean>(params, card, stream)
                  : launch<128, Source::kTransform>(params, card, stream);
}

}  // namespace oscar::cuda::sm90

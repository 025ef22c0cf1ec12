// Launches kernels for many tokens: as many warps a block as the card's shared memory serves.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/device_layout.h"
#include "cuda/encode_params.h"

namespace oscar::cuda::encode {

struct Card {
  int num_sms = 0, shared_bytes = 0, compute_capability = 0;  // 90: 9.0
};

// Blocks of a (head, side): what fills the card, one a multiprocessor, in multiples of four.
inline unsigned blocks_of(const EncodeParams& params, int num_warps, int num_sms) {
  const std::int64_t tiles = params.num_tokens / kSlab + 2;
  const std::int64_t most = (tiles + num_warps - 1) / num_warps;
  const std::int64_t wanted =
      std::max<std::int64_t>(1, num_sms / (2 * std::int64_t{params.num_kv_heads}));
  const std::int64_t blocks = std::min(most, wanted);
  constexpr int kSlabs = kPageTokens / kSlab;  // a block has one slab of every page, if it can
  return static_cast<unsigned>(blocks < kSlabs ? blocks : blocks - blocks % kSlabs);
}

// Launches with as many warps as the card's shared memory serves: most_warps at most, a multiple of
// warps_together.
template <typename Kernel>
cudaError_t launch_many(Kernel kernel, const EncodeParams& params, int most_warps,
                        int warps_together, int warp_bytes, int image_bytes, const Card& card,
                        cudaStream_t stream) {
  int num_warps = std::min(most_warps, (card.shared_bytes - image_bytes) / warp_bytes);
  num_warps -= num_warps % warps_together;
  if (num_warps < 1) return cudaErrorInvalidConfiguration;
  const int shared = num_warps * warp_bytes + image_bytes;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (error != cudaSuccess) return error;
  const dim3 grid(blocks_of(params, num_warps, card.num_sms),
                  static_cast<unsigned>(params.num_kv_heads), 2);
  kernel<<<grid, static_cast<unsigned>(32 * num_warps), static_cast<std::size_t>(shared), stream>>>(
      params);
  return cudaGetLastError();
}

}  // namespace oscar::cuda::encode

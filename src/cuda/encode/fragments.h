// Launch of the fragment kernels; encode.cu chooses.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/encode_params.h"

namespace oscar::cuda::encode {

// Where the fragments of a side's rows come from.
enum class Source {
  kRotated,    // rows are rotated already
  kTransform,  // rows times the image
  kLessMean,   // rows less the mean, times the image
};

// How rows become codes.
enum class Coding {
  kFloat,    // in float32
  kPacked,   // plain codes of 2 bits: two channels an instruction
  kTrellis,  // a search for every word
};

// What tells the kernel of a side.
struct FragmentRoute {
  Source source;
  int head_dim;
  Coding coding;
  bool operator==(const FragmentRoute&) const = default;
};

bool serves(const EncodeSide& side) noexcept;
FragmentRoute route_of(const EncodeSide& side) noexcept;  // of a side that is served

struct Card;
// Many tokens of trellis codes; head size 64 or 128.
cudaError_t run_trellis(const EncodeParams& params, int head_dim, Source source, const Card& card,
                        cudaStream_t stream);

// Sides without rows are left out; the others have the route.
cudaError_t run_fragments(const EncodeParams& params, const FragmentRoute& route,
                          cudaStream_t stream);

}  // namespace oscar::cuda::encode

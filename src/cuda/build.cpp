#include "cuda/build.h"

namespace oscar::cuda {

const BuildText kBuildText = {
#include "cuda_build_text.inc"
};

}  // namespace oscar::cuda

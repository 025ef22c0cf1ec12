// The GPU that is here, and whether this build has code for it: asked before anything is loaded.
#pragma once

#include <string>

namespace oscar::cuda {

// Whether CUDA sees a GPU at all, be it one that this build serves or not.
bool has_gpu() noexcept;

// "NVIDIA H200 (sm_90)". Throws Error(kUnsupported) with one sentence: no driver, no GPU, no such
// device, a GPU older than 8.0, or "built for …, this GPU is …". Makes CUDA's context of the
// device.
std::string usable_gpu(int device);

}  // namespace oscar::cuda

// What this build was configured to do on GPUs (cmake/CudaChoice.cmake). In every build, with
// kernels or without.
#pragma once

namespace oscar::cuda {

struct BuildText {
  const char* choice;  // "CUDA: …" or "CPU only, because …": configure's last line
  const char* code;    // "sm_80, sm_90, sm_90a, sm_120, PTX of 8.0"; "" without kernels
};
extern const BuildText kBuildText;

}  // namespace oscar::cuda

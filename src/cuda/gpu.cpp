#include "cuda/gpu.h"

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "cuda/attend.h"
#include "cuda/build.h"

namespace oscar::cuda {
namespace {

constexpr int kOldestCapability = 80;

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::kUnsupported, what); }

void require(cudaError_t error, const std::string& what) {
  if (error != cudaSuccess) refuse(what + ": " + cudaGetErrorString(error));
}

// Makes a device current, and the one before it again.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    require(cudaGetDevice(&before_), "the current CUDA device cannot be read");
    require(cudaSetDevice(device), "CUDA device " + std::to_string(device) + " cannot be used");
  }
  ~CurrentDevice() { cudaSetDevice(before_); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
};

}  // namespace

bool has_gpu() noexcept {
  int num_devices = 0;
  return cudaGetDeviceCount(&num_devices) == cudaSuccess && num_devices > 0;
}

std::string usable_gpu(int device) {
  int num_devices = 0, driver = 0;
  const cudaError_t counted = cudaGetDeviceCount(&num_devices);
  // CUDA calls a driver that is missing an insufficient one, of version 0.
  if (counted == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess &&
      driver == 0) {
    refuse("no GPU can be used: its driver (libcuda.so.1) is not installed");
  }
  require(counted, "no GPU can be used");
  if (device < 0 || device >= num_devices) {
    refuse("there is no CUDA device " + std::to_string(device) + "; this machine has " +
           std::to_string(num_devices) + ", counted from 0");
  }
  cudaDeviceProp properties = {};
  require(cudaGetDeviceProperties(&properties, device), "CUDA device " + std::to_string(device));
  const int capability = 10 * properties.major + properties.minor;
  const std::string gpu = std::string(properties.name) + " (sm_" + std::to_string(capability) + ")";
  if (capability < kOldestCapability) {
    refuse("this GPU is " + gpu + "; needed: sm_" + std::to_string(kOldestCapability) +
           " or later");
  }
  const CurrentDevice current(device);
  // A kernel that every shape can fall back on; it loads if the build has code for this GPU.
  const AttendFunction function = sm80::attend_function(128, 16, 1, false);
  cudaFuncAttributes attributes = {};
  const cudaError_t error =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(function.function));
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction ||
      error == cudaErrorUnsupportedPtxVersion) {
    cudaGetLastError();  // not this thread's last error any more
    refuse(std::string("built for ") + kBuildText.code + ", this GPU is " + gpu + " (" +
           cudaGetErrorString(error) +
           "); build with -DOSCAR_CUDA_ARCHITECTURES=" + std::to_string(capability) + "-real");
  }
  require(error, gpu + " cannot run the kernels");
  return gpu;
}

}  // namespace oscar::cuda

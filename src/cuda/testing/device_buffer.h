// Device memory of tests and benchmarks; CUDA errors throw.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace oscar::cuda::testing {

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw Error(ErrorCode::kUnsupported, std::string(what) + ": " + cudaGetErrorString(error));
}

// Owns `size` elements of T on the device. Movable, not copyable.
template <typename T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::size_t size) : size_(size) {
    if (size > 0)
      check(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(T)), "cudaMalloc");
  }
  explicit DeviceBuffer(const std::vector<T>& values) : DeviceBuffer(values.size()) {
    upload(values);
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(DeviceBuffer&& other) noexcept : data_(other.data_), size_(other.size_) {
    other.data_ = nullptr;
    other.size_ = 0;
  }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  void upload(const std::vector<T>& values) {
    if (values.empty()) return;
    check(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
          "upload");
  }
  std::vector<T> download() const {
    std::vector<T> values(size_);
    if (size_ > 0) {
      check(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
            "download");
    }
    return values;
  }
  void fill(int byte) {
    if (size_ > 0) check(cudaMemset(data_, byte, size_ * sizeof(T)), "fill");
  }
  T* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace oscar::cuda::testing

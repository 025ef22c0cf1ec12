#include "cuda/encode.h"
#include "cuda/encode/transform_image.h"
#include "cuda/ptx/scalar.h"

namespace oscar::cuda {
namespace {

// One block a head.
__global__ void prepare_transform(const float* matrices, int head_dim, std::uint8_t* image) {
  const int size = head_dim * head_dim;
  const float* matrix = matrices + std::int64_t{blockIdx.x} * size;
  std::uint8_t* base = image + blockIdx.x * transform_head_bytes(head_dim);
  const float magnitude = fabsf(matrix[0]);
  bool is_equal = magnitude > 0;
  for (int i = threadIdx.x; i < size; i += blockDim.x) {
    is_equal = is_equal && fabsf(matrix[i]) == magnitude;
  }
  const float unit = __syncthreads_and(is_equal) ? magnitude : 1.0f;
  bool has_rest = false;
  std::uint32_t* words = reinterpret_cast<std::uint32_t*>(base + sizeof(TransformHead));
  const int part_words = size / 2;
  for (int w = threadIdx.x; w < part_words; w += blockDim.x) {
    const int r = w % 2, odd = w / 2 % 2, lane = w / 4 % 32, pair = w / 128 % (head_dim / 16);
    const int step = w / (8 * head_dim);
    const int column = 8 * (2 * pair + odd) + lane / 4;
    float value[2], rest[2];
    for (int i = 0; i < 2; ++i) {
      value[i] = matrix[transform_channel(step, lane % 4, r, i) * head_dim + column] / unit;
      rest[i] = value[i] - ptx::low_bf16(ptx::pack_bf16(value[i], 0.0f));
      has_rest = has_rest || rest[i] != 0;
    }
    words[w] = ptx::pack_bf16(value[0], value[1]);
    words[part_words + w] = ptx::pack_bf16(rest[0], rest[1]);
  }
  const bool has_second = __syncthreads_or(has_rest);
  if (threadIdx.x == 0) {
    *reinterpret_cast<TransformHead*>(base) = {unit, has_second ? 2 : 1, {0, 0}};
  }
}

}  // namespace

std::size_t transform_image_bytes(int num_kv_heads, int head_dim) {
  return static_cast<std::size_t>(num_kv_heads) * transform_head_bytes(head_dim);
}

Status run_prepare_transform(const float* matrices, int num_kv_heads, int head_dim, void* image,
                             cudaStream_t stream) noexcept {
  if (head_dim != 64 && head_dim != 128) {
    return Status::failure(Status::Code::kInvalidArgument,
                           "transform image: head_dim %d is neither 64 nor 128", head_dim);
  }
  if (matrices == nullptr || image == nullptr || num_kv_heads <= 0 ||
      reinterpret_cast<std::uintptr_t>(image) % 16 != 0) {
    return Status::failure(Status::Code::kInvalidArgument, "%s",
                           "transform image: matrices and image must not be null, image 16-byte "
                           "aligned, num_kv_heads positive");
  }
  prepare_transform<<<static_cast<unsigned>(num_kv_heads), 256, 0, stream>>>(
      matrices, head_dim, static_cast<std::uint8_t*>(image));
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return {};
  return Status::failure(Status::Code::kCudaError, "transform image: %s (%d heads of %d)",
                         cudaGetErrorString(error), num_kv_heads, head_dim);
}

}  // namespace oscar::cuda

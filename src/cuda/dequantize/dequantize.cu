// A block of threads takes a page of one head and side: the plane comes to shared memory as it is,
// and a thread writes eight channels of a token at a time. Writes are 14 times what is read, so
// where the codes lie in the plane does not matter.
#include <cuda_bf16.h>

#include "cuda/dequantize.h"

namespace oscar::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChannels = 8;  // of a thread at a time: 16 bytes

__device__ __forceinline__ float bf16_at(const std::uint8_t* bytes) {
  return __uint_as_float(static_cast<unsigned>(bytes[0]) << 16 | static_cast<unsigned>(bytes[1])
                                                                     << 24);
}

__device__ __forceinline__ int code_at(const DevicePlane& plane, const std::uint8_t* bytes,
                                       int token, int channel) {
  if (plane.trellis) return plane.trellis_level(bytes, token, channel);
  const CodePlace low = plane.low(token, channel);
  int code = bytes[low.byte] >> low.shift & ((1 << plane.low_bits()) - 1);
  if (plane.bits == 3) {
    const CodePlace high = plane.high(token, channel);
    code |= (bytes[high.byte] >> high.shift & 1) << 2;
  }
  return code;
}

// grid: (pages that have tokens of the range, KV heads, sides).
__global__ void __launch_bounds__(kThreads)
    dequantize(const __grid_constant__ DequantizeParams params) {
  extern __shared__ __align__(16) std::uint8_t bytes[];
  const DequantizeSide& side = params.sides[blockIdx.z];
  if (side.rows == nullptr) return;
  const DevicePlane plane = side.plane;
  const std::int64_t page = params.first_token / kPageTokens + blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const std::uint8_t* from = params.pages + params.block_table[page] * params.page_stride_bytes +
                             head * params.head_stride_bytes + side.plane_offset_bytes;
  for (int i = static_cast<int>(threadIdx.x); i < plane.plane_bytes() / 16; i += kThreads) {
    reinterpret_cast<uint4*>(bytes)[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  __syncthreads();
  const int items = plane.head_dim / kChannels;
  const float middle = plane.centre();
  for (int i = static_cast<int>(threadIdx.x); i < kPageTokens * items; i += kThreads) {
    const int token = i / items, channel = i % items * kChannels;
    const std::int64_t row = page * kPageTokens + token - params.first_token;
    if (row < 0 || row >= params.num_tokens) continue;
    const int group = channel / plane.group_size;  // groups are multiples of 16 channels
    const float scale = bf16_at(bytes + plane.scale_offset(group, token));
    const float zero = plane.affine ? bf16_at(bytes + plane.zero_offset(group, token)) : middle;
    __align__(16) __nv_bfloat16 values[kChannels];
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const float code = static_cast<float>(code_at(plane, bytes, token, channel + c));
      values[c] = __float2bfloat16_rn(scale * (code - zero));
    }
    bf16_t* to = side.rows + row * params.token_stride + head * plane.head_dim + channel;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(values);
  }
}

bool is_aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

}  // namespace

Status run_dequantize(const DequantizeParams& params, cudaStream_t stream) noexcept {
  const auto refuse = [](const char* what) {
    return Status::failure(Status::Code::kInvalidArgument, "dequantize: %s", what);
  };
  if (params.num_tokens < 0 || params.first_token < 0) {
    return refuse("first_token and num_tokens must not be negative");
  }
  if (params.num_kv_heads <= 0 || params.num_kv_heads > 65535) {
    return refuse("num_kv_heads must be 1 to 65535");
  }
  if (params.num_tokens == 0) return {};
  if (params.pages == nullptr || params.block_table == nullptr) {
    return refuse("pages and block_table must not be null");
  }
  if (!is_aligned(params.pages) || params.page_stride_bytes % 16 != 0 ||
      params.head_stride_bytes % 16 != 0 || params.token_stride % 8 != 0) {
    return refuse("pages must be 16-byte aligned, strides multiples of 16 bytes");
  }
  int plane_bytes = 0;
  for (const DequantizeSide& side : params.sides) {
    if (side.rows == nullptr) continue;
    if (!is_aligned(side.rows) || side.plane.head_dim % kChannels != 0 ||
        side.plane.plane_bytes() % 16 != 0 || side.plane_offset_bytes % 16 != 0) {
      return refuse("rows and planes must be 16-byte aligned");
    }
    plane_bytes = side.plane.plane_bytes() > plane_bytes ? side.plane.plane_bytes() : plane_bytes;
  }
  const std::int64_t first_page = params.first_token / kPageTokens;
  const std::int64_t last_page = (params.first_token + params.num_tokens - 1) / kPageTokens;
  const dim3 grid(static_cast<unsigned>(last_page - first_page + 1),
                  static_cast<unsigned>(params.num_kv_heads), 2);
  dequantize<<<grid, kThreads, static_cast<std::size_t>(plane_bytes), stream>>>(params);
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return {};
  return Status::failure(Status::Code::kCudaError, "dequantize: %s (%lld tokens, %d heads)",
                         cudaGetErrorString(error), static_cast<long long>(params.num_tokens),
                         params.num_kv_heads);
}

}  // namespace oscar::cuda

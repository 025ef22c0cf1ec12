#include "cuda/encode/fragment_rows.cuh"
#include "cuda/transform.h"

namespace oscar::cuda {
namespace {

constexpr int kRows = 8;  // of a block; its warps share the columns, sixteen each
constexpr int num_warps(int head_dim) { return head_dim / 16; }

// grid: (rows of a KV head / 8, KV heads). Row r of a KV head is query head r % ratio of token r /
// ratio.
template <int kHeadDim>
__global__ void __launch_bounds__(32 * num_warps(kHeadDim), 1)
    transform_rows(const __grid_constant__ TransformRowsParams params) {
  constexpr int kCount = 2;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int ratio = params.heads_per_kv_head;
  const int row = blockIdx.x * kRows + g, last = static_cast<int>(params.num_tokens) * ratio - 1;
  // Rows beyond the last compute it again.
  const int read = min(row, last), token = read / ratio;
  const std::int64_t head = blockIdx.y * ratio + read % ratio;
  encode::RawRow<kHeadDim> raw;
  raw.load(params.rows + token * params.token_stride + head * kHeadDim);
  const std::uint8_t* image =
      static_cast<const std::uint8_t*>(params.image) + blockIdx.y * transform_head_bytes(kHeadDim);
  const TransformHead info = *reinterpret_cast<const TransformHead*>(image);
  encode::RowFragments<kCount, 1> v;
  encode::transform_fragments<kHeadDim, 1, kCount, false>(
      v, raw, reinterpret_cast<const uint4*>(image + sizeof(TransformHead)), info.num_parts,
      info.unit, warp * kCount);
  __syncthreads();  // out may be rows
  if (row > last) return;
  uint32_t* to =
      reinterpret_cast<uint32_t*>(params.out + token * params.out_token_stride + head * kHeadDim) +
      4 * warp * kCount + t;
#pragma unroll
  for (int n = 0; n < kCount; ++n) to[4 * n] = ptx::pack_bf16(v[n][0], v[n][1]);
}

}  // namespace

Status run_transform_rows(const TransformRowsParams& params, cudaStream_t stream) noexcept {
  const auto refuse = [](const char* what) {
    return Status::failure(Status::Code::kInvalidArgument, "transform: %s", what);
  };
  if (params.head_dim != 64 && params.head_dim != 128) {
    return Status::failure(Status::Code::kInvalidArgument,
                           "transform: head_dim %d is neither 64 nor 128", params.head_dim);
  }
  if (params.num_tokens < 0 || params.num_kv_heads <= 0 || params.num_kv_heads > 65535 ||
      params.heads_per_kv_head <= 0) {
    return refuse("num_tokens, num_kv_heads and heads_per_kv_head must be positive");
  }
  if (params.rows == nullptr || params.out == nullptr || params.image == nullptr) {
    return refuse("rows, out and image must not be null");
  }
  if (reinterpret_cast<std::uintptr_t>(params.rows) % 16 != 0 ||
      reinterpret_cast<std::uintptr_t>(params.out) % 16 != 0 ||
      reinterpret_cast<std::uintptr_t>(params.image) % 16 != 0 || params.token_stride % 8 != 0 ||
      params.out_token_stride % 8 != 0) {
    return refuse("rows, out and image must be 16-byte aligned, strides multiples of 8");
  }
  if (params.num_tokens == 0) return {};
  const dim3 grid(
      static_cast<unsigned>((params.num_tokens * params.heads_per_kv_head + kRows - 1) / kRows),
      static_cast<unsigned>(params.num_kv_heads));
  if (params.head_dim == 64) {
    transform_rows<64><<<grid, 32 * num_warps(64), 0, stream>>>(params);
  } else {
    transform_rows<128><<<grid, 32 * num_warps(128), 0, stream>>>(params);
  }
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return {};
  return Status::failure(Status::Code::kCudaError, "transform: %s (%lld tokens, %d heads of %d)",
                         cudaGetErrorString(error), static_cast<long long>(params.num_tokens),
                         params.num_kv_heads * params.heads_per_kv_head, params.head_dim);
}

}  // namespace oscar::cuda

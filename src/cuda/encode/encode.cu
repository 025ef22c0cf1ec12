#include "cuda/encode.h"
#include "cuda/encode/copy_keys.h"
#include "cuda/encode/fragments.h"
#include "cuda/encode/kernel.cuh"

namespace oscar::cuda {
namespace {

template <int kMaxDim, bool kWhole>
cudaError_t launch(const EncodeParams& params, cudaStream_t stream) {
  using encode::Tile;
  const auto kernel = encode::encode_kernel<kMaxDim, kWhole>;
  if (sizeof(Tile<kMaxDim>) > 48 * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int{sizeof(Tile<kMaxDim>)});
    if (error != cudaSuccess) return error;
  }
  const dim3 grid(
      static_cast<unsigned>((params.num_tokens + encode::kTileTokens - 1) / encode::kTileTokens),
      static_cast<unsigned>(params.num_kv_heads), 2);
  kernel<<<grid, encode::kThreads, sizeof(Tile<kMaxDim>), stream>>>(params);
  return cudaGetLastError();
}

template <int kMaxDim>
cudaError_t launch(const EncodeParams& params, bool is_whole, cudaStream_t stream) {
  return is_whole ? launch<kMaxDim, true>(params, stream) : launch<kMaxDim, false>(params, stream);
}

cudaError_t run_ordered(const EncodeParams& params, cudaStream_t stream) {
  int head_dim = 0;
  for (const EncodeSide& side : params.sides) {
    if (side.rows != nullptr && side.plane.head_dim > head_dim) head_dim = side.plane.head_dim;
  }
  const int max_dim = head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
  bool is_whole = true;
  for (const EncodeSide& side : params.sides) {
    if (side.rows == nullptr) continue;
    is_whole = is_whole && side.plane.head_dim == max_dim && side.plane.group_size == max_dim;
  }
  const cudaError_t error = encode::run_copy_keys(params, stream);
  if (error != cudaSuccess) return error;
  return max_dim == 64    ? launch<64>(params, is_whole, stream)
         : max_dim == 128 ? launch<128>(params, is_whole, stream)
                          : launch<256>(params, is_whole, stream);
}

// Sides of one route share a launch.
bool share_route(const EncodeSide& keys, const EncodeSide& values) {
  if (!encode::serves(keys) || !encode::serves(values)) {
    return encode::serves(keys) == encode::serves(values);
  }
  return encode::route_of(keys) == encode::route_of(values);
}

cudaError_t run_route(const EncodeParams& params, const EncodeSide& side, cudaStream_t stream) {
  if (!encode::serves(side)) return run_ordered(params, stream);
  return encode::run_fragments(params, encode::route_of(side), stream);
}

std::string check_side(const EncodeParams& params, const EncodeSide& side, const char* name) {
  const auto say = [name](const char* what) { return std::string(name) + ": " + what; };
  const DevicePlane& plane = side.plane;
  if (plane.head_dim < 32 || plane.head_dim > 256 || plane.head_dim % 16 != 0) {
    return say("head_dim ") + std::to_string(plane.head_dim) +
           " is not a multiple of 16 from 32 to 256";
  }
  if (plane.bits < 2 || plane.bits > 4) return say("bits must be 2, 3 or 4");
  if (plane.trellis && (plane.bits != 2 || plane.affine)) {
    return say("trellis codes have 2 bits and no zero points");
  }
  if (plane.group_size <= 0 || plane.head_dim % plane.group_size != 0) {
    return say("group_size must divide head_dim");
  }
  if (reinterpret_cast<std::uintptr_t>(side.rows) % 16 != 0 || side.token_stride % 8 != 0 ||
      side.head_stride % 8 != 0) {
    return say("rows must be 16-byte aligned and their strides multiples of 8");
  }
  if (side.clip_ratio == nullptr) return say("clip_ratio must not be null");
  if (side.transform_image != nullptr) {
    if (side.transform != nullptr) return say("give a transform or its image, not both");
    if (reinterpret_cast<std::uintptr_t>(side.transform_image) % 16 != 0) {
      return say("transform_image must be 16-byte aligned");
    }
    if (reinterpret_cast<std::uintptr_t>(side.mean) % 16 != 0 ||
        reinterpret_cast<std::uintptr_t>(params.rope_tile) % 16 != 0 ||
        reinterpret_cast<std::uintptr_t>(params.rope_start) % 16 != 0) {
      return say("mean and RoPE tables must be 16-byte aligned with a transform image");
    }
    if (!encode::serves(side)) {
      return say("a transform image needs head_dim 64 or 128, one group and a permuted plane");
    }
  }
  if (side.plane_offset_bytes < 0 || side.plane_offset_bytes % 16 != 0 ||
      side.plane_offset_bytes + plane.plane_bytes() > params.head_stride_bytes) {
    return say("the plane does not lie in the run of a head");
  }
  return "";
}

}  // namespace

std::string check_params(const EncodeParams& params) {
  if (params.num_tokens < 0 || params.num_tokens > (std::int64_t{1} << 30)) {
    return "num_tokens " + std::to_string(params.num_tokens) + " is out of range";
  }
  if (params.num_kv_heads <= 0 || params.num_kv_heads > 65535) {
    return "num_kv_heads " + std::to_string(params.num_kv_heads) + " is out of range";
  }
  if (params.pages == nullptr || params.slots == nullptr) return "pages and slots must not be null";
  if (reinterpret_cast<std::uintptr_t>(params.pages) % 16 != 0 ||
      params.page_stride_bytes % 16 != 0 || params.head_stride_bytes % 16 != 0) {
    return "pages, page_stride_bytes and head_stride_bytes must be multiples of 16";
  }
  for (int side = 0; side < 2; ++side) {
    if (params.sides[side].rows == nullptr) continue;
    const std::string problem =
        check_side(params, params.sides[side], side == 0 ? "keys" : "values");
    if (!problem.empty()) return problem;
  }
  if (params.num_pairs > 0 && params.sides[0].mean != nullptr &&
      (!params.positions || !params.rope_tile || !params.rope_start)) {
    return "a key mean before RoPE needs positions and its tables";
  }
  if (params.copies != nullptr && (params.copy_slots == nullptr || params.rows_per_block <= 0)) {
    return "copies need copy_slots and rows_per_block";
  }
  return "";
}

const char* encode_kernel_name(const EncodeSide& side) noexcept {
  return encode::serves(side) ? "fragments" : "ordered";
}

Status run_encode(const EncodeParams& params, cudaStream_t stream) noexcept {
  try {
    const std::string problem = check_params(params);
    if (!problem.empty()) {
      return Status::failure(Status::Code::kInvalidArgument, "encode: %s", problem.c_str());
    }
  } catch (...) {
    return Status::failure(Status::Code::kInvalidArgument, "%s", "out of memory while checking");
  }
  if (params.num_tokens == 0) return {};
  cudaError_t error = cudaSuccess;
  const EncodeSide &keys = params.sides[0], &values = params.sides[1];
  if (keys.rows != nullptr && values.rows != nullptr && share_route(keys, values)) {
    error = run_route(params, keys, stream);
  } else {
    for (int side = 0; side < 2 && error == cudaSuccess; ++side) {
      if (params.sides[side].rows == nullptr) continue;
      EncodeParams one = params;
      one.sides[1 - side].rows = nullptr;
      error = run_route(one, params.sides[side], stream);
    }
  }
  if (error == cudaSuccess) return {};
  return Status::failure(
      Status::Code::kCudaError, "encode: %s (%lld tokens, %d heads of %d, %d/%d bits)",
      cudaGetErrorString(error), static_cast<long long>(params.num_tokens), params.num_kv_heads,
      keys.plane.head_dim, params.sides[0].plane.bits, params.sides[1].plane.bits);
}

}  // namespace oscar::cuda

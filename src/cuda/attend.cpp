#include "cuda/attend.h"

#include <string>

#include "base/error.h"
#include "cuda/gpu.h"
#include "cuda/transform.h"

namespace oscar::cuda {
namespace {

Status cuda_failure(const AttendPlan& plan, const char* what, cudaError_t error) noexcept {
  const AttendShape& shape = plan.shape;
  return Status::failure(
      Status::Code::kCudaError,
      "%s: %s (%s; %d sequences, %d queries, %d/%d heads of %d, %d/%d bits, grid %d)",
      kernel_name(plan.kernel), what, cudaGetErrorString(error), shape.num_seqs, shape.num_queries,
      shape.num_q_heads, shape.num_kv_heads, shape.key.head_dim, shape.key.quant.bits,
      shape.value.quant.bits, plan.grid);
}

AttendFunction function_of(const AttendPlan& plan) noexcept {
  const AttendShape& shape = plan.shape;
  const bool is_trellis = shape.key.quant.codebook == Codebook::kTrellis;
  if (plan.kernel == AttendKernel::kHopperDecode) {
    if (is_trellis) {
      return sm90::decode_trellis_function(shape.key.head_dim, plan.rows_per_block / 4,
                                           shape.num_seqs, shape.has_mean);
    }
    return sm90::decode_function(shape.key.head_dim, shape.key.quant.bits, shape.value.quant.bits,
                                 shape.key.quant.codebook == Codebook::kAffine,
                                 plan.rows_per_block / 4, shape.num_seqs, shape.has_mean);
  }
  if (plan.kernel == AttendKernel::kHopperPrefill) {
    if (is_trellis) return sm90::prefill_trellis_function(shape.key.head_dim, shape.has_mean);
    return sm90::prefill_function(shape.key.head_dim, shape.key.quant.bits, shape.value.quant.bits,
                                  shape.has_mean);
  }
  return sm80::attend_function(shape.key.head_dim, plan.rows_per_block, shape.key.num_groups(),
                               shape.has_mean);
}

}  // namespace

DeviceInfo device_info(int device) {
  usable_gpu(device);
  const auto attribute = [device](cudaDeviceAttr name) {
    int value = 0;
    const cudaError_t error = cudaDeviceGetAttribute(&value, name, device);
    if (error != cudaSuccess) {
      throw Error(ErrorCode::kUnsupported, "CUDA device " + std::to_string(device) +
                                               " cannot be read: " + cudaGetErrorString(error));
    }
    return value;
  };
  return {10 * attribute(cudaDevAttrComputeCapabilityMajor) +
              attribute(cudaDevAttrComputeCapabilityMinor),
          attribute(cudaDevAttrMultiProcessorCount),
          attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
          sm90::decode_function(128, 2, 2, true, 1, 1, false).function != nullptr};
}

Status prepare_attend(const AttendPlan& plan, void* workspace, std::size_t workspace_bytes,
                      cudaStream_t stream) noexcept {
  if (workspace == nullptr || workspace_bytes < plan.workspace_bytes) {
    return Status::failure(Status::Code::kInvalidArgument,
                           "workspace of %zu bytes is too small; needed: %zu", workspace_bytes,
                           plan.workspace_bytes);
  }
  const cudaError_t error = cudaMemsetAsync(workspace, 0, plan.counter_bytes, stream);
  if (error != cudaSuccess) return cuda_failure(plan, "zeroing the counters", error);
  const AttendFunction function = function_of(plan);
  if (function.function == nullptr) {
    return Status::failure(Status::Code::kInvalidArgument, "%s is not in this build",
                           kernel_name(plan.kernel));
  }
  // The limit is the function's, of all plans: it is raised only, or larger batches could not be
  // launched any more.
  const void* kernel = reinterpret_cast<const void*>(function.function);
  cudaFuncAttributes now = {};
  cudaError_t limit = cudaFuncGetAttributes(&now, kernel);
  if (limit == cudaSuccess && now.maxDynamicSharedSizeBytes < function.shared_bytes) {
    limit = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 function.shared_bytes);
  }
  return limit == cudaSuccess ? Status{} : cuda_failure(plan, "raising the shared memory", limit);
}

Status run_attend(const AttendPlan& plan, AttendParams params, void* workspace,
                  std::size_t workspace_bytes, cudaStream_t stream) noexcept {
  try {
    const std::string problem = check_params(plan, params, workspace_bytes);
    if (!problem.empty()) {
      return Status::failure(Status::Code::kInvalidArgument, "%s", problem.c_str());
    }
  } catch (...) {
    return Status::failure(Status::Code::kInvalidArgument, "%s", "out of memory while checking");
  }
  if (reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0) {
    return Status::failure(Status::Code::kInvalidArgument, "%s",
                           "workspace must be 256-byte aligned");
  }
  const AttendFunction function = function_of(plan);
  if (function.function == nullptr) {
    return Status::failure(Status::Code::kInvalidArgument, "%s is not in this build",
                           kernel_name(plan.kernel));
  }
  const bool overlaps = params.overlap_previous && plan.kernel == AttendKernel::kHopperDecode;
  params.overlap_previous = overlaps;
  params.q_heads_per_kv_head = params.num_q_heads / params.num_kv_heads;
  params.num_splits = plan.num_splits;
  params.num_row_blocks = plan.num_row_blocks;
  params.counters = static_cast<std::int32_t*>(workspace) + 1;
  params.faults = static_cast<std::int32_t*>(workspace);
  params.partials =
      reinterpret_cast<float*>(static_cast<std::uint8_t*>(workspace) + plan.counter_bytes);

  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(plan.grid));
  if (plan.kernel == AttendKernel::kHopperDecode && plan.num_splits > 0) {
    config.gridDim = dim3(static_cast<unsigned>(plan.num_splits),
                          static_cast<unsigned>(plan.shape.num_kv_heads * plan.num_row_blocks),
                          static_cast<unsigned>(plan.shape.num_seqs));
  }
  config.blockDim = dim3(static_cast<unsigned>(function.threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(function.shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlaps ? 1 : 0;
  void* arguments[] = {&params};
  const cudaError_t error =
      cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(function.function), arguments);
  if (error != cudaSuccess) return cuda_failure(plan, "launch", error);
  if (params.out_image == nullptr || function.transforms_out) return {};
  return run_transform_rows(
      {params.out, params.out, params.out_token_stride, params.out_token_stride, params.out_image,
       std::int64_t{params.num_seqs} * params.num_queries, params.num_kv_heads,
       params.q_heads_per_kv_head, params.key.head_dim},
      stream);
}

Status read_faults(const AttendPlan& plan, const void* workspace, cudaStream_t stream) noexcept {
  if (workspace == nullptr) {
    return Status::failure(Status::Code::kInvalidArgument, "%s", "workspace must not be null");
  }
  std::int32_t fault = 0;
  cudaError_t error =
      cudaMemcpyAsync(&fault, workspace, sizeof fault, cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) return cuda_failure(plan, "reading the faults", error);
  if (fault == 0) return {};
  return Status::failure(Status::Code::kInvalidArgument,
                         "%s: the block table held a page id outside [0, num_pages)",
                         kernel_name(plan.kernel));
}

}  // namespace oscar::cuda

// include/oscar/oscar_cuda.h: translates structs, statuses and exceptions, and nothing else.
#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "base/error.h"
#include "cuda/attend.h"
#include "cuda/build.h"
#include "cuda/dequantize.h"
#include "cuda/encode.h"
#include "cuda/gpu.h"
#include "cuda/transform.h"
#include "oscar/oscar_cuda.h"

struct oscar_cuda_plan {
  oscar::cuda::AttendPlan plan;
};

namespace oscar::cuda {
namespace {

thread_local char last_error[256] = "";

oscar_status fail(oscar_status status, const char* message) noexcept {
  std::snprintf(last_error, sizeof last_error, "%s", message);
  return status;
}

oscar_status result_of(const Status& status) noexcept {
  if (status.ok()) return OSCAR_OK;
  return fail(
      status.code == Status::Code::kInvalidArgument ? OSCAR_INVALID_ARGUMENT : OSCAR_INTERNAL,
      status.message);
}

// Runs `action`; what it throws becomes a status.
template <typename Action>
oscar_status guarded(Action action) noexcept {
  try {
    return action();
  } catch (const Error& error) {
    return fail(
        error.code() == ErrorCode::kUnsupported ? OSCAR_UNSUPPORTED : OSCAR_INVALID_ARGUMENT,
        error.what());
  } catch (const std::bad_alloc&) {
    return fail(OSCAR_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return fail(OSCAR_INTERNAL, error.what());
  }
}

PlaneLayout layout_of(const oscar_cuda_quant& quant, int head_dim, const char* side) {
  if (quant.scale_fit < 0 || quant.scale_fit > 2) {
    throw Error(ErrorCode::kInvalidArgument, std::string(side) + ": scale_fit " +
                                                 std::to_string(quant.scale_fit) +
                                                 " must be 0, 1 or 2");
  }
  if (quant.affine < 0 || quant.affine > 2) {
    throw Error(
        ErrorCode::kInvalidArgument,
        std::string(side) + ": affine " + std::to_string(quant.affine) + " must be 0, 1 or 2");
  }
  const Codebook codebook = quant.affine == 0   ? Codebook::kSymmetric
                            : quant.affine == 2 ? Codebook::kTrellis
                                                : Codebook::kAffine;
  const PlaneLayout layout{
      head_dim, {quant.bits, quant.group_size, codebook, static_cast<ScaleFit>(quant.scale_fit)}};
  layout.validate();
  return layout;
}

AttendShape shape_of(const oscar_cuda_shape& s) {
  AttendShape shape;
  shape.num_seqs = s.num_seqs;
  shape.num_queries = s.num_queries;
  shape.num_q_heads = s.num_q_heads;
  shape.num_kv_heads = s.num_kv_heads;
  shape.key = layout_of(s.key, s.head_dim, "keys");
  shape.value = layout_of(s.value, s.head_dim, "values");
  shape.max_seq_len = s.max_seq_len;
  shape.sink_tokens = s.sink_tokens;
  shape.recent_tokens = s.recent_tokens;
  shape.sliding_window = s.sliding_window;
  shape.has_copies = s.has_copies != 0;
  shape.has_mean = s.mean_pairs != 0;
  shape.mean_pairs = s.mean_pairs;
  return shape;
}

AttendParams params_of(const AttendShape& shape, const oscar_cuda_attend_args& a) {
  AttendParams p;
  p.pages = a.pages;
  p.page_stride_bytes = a.page_stride_bytes;
  p.head_stride_bytes = a.head_stride_bytes;
  p.num_pages = a.num_pages;
  p.key = device_plane(shape.key, Side::kKey);
  p.value = device_plane(shape.value, Side::kValue);
  p.block_table = a.block_table;
  p.block_table_stride = a.block_table_stride;
  p.seq_lens = a.seq_lens;
  p.q = a.q;
  p.raw_q = a.raw_q;
  p.out = a.out;
  p.lse = a.lse;
  p.out_image = a.out_image;
  p.q_token_stride = a.q_token_stride;
  p.raw_q_token_stride = a.raw_q_token_stride;
  p.out_token_stride = a.out_token_stride;
  if (shape.has_copies) p.copies = {a.copies, a.copy_blocks, shape.sink_tokens, a.ring_rows};
  p.sink_tokens = shape.sink_tokens;
  p.recent_tokens = shape.recent_tokens;
  if (shape.has_mean) {
    p.mean = {a.mean_coefficients, a.mean_tile, a.mean_start, shape.mean_pairs};
  }
  p.num_seqs = shape.num_seqs;
  p.num_queries = shape.num_queries;
  p.num_q_heads = shape.num_q_heads;
  p.num_kv_heads = shape.num_kv_heads;
  p.scale = a.scale;
  p.soft_cap = a.soft_cap;
  p.sliding_window = shape.sliding_window;
  p.learned_sinks = a.learned_sinks;
  p.overlap_previous = a.overlap_previous != 0;
  return p;
}

EncodeSide side_of(const oscar_cuda_encode_side& s, int head_dim, Side side) {
  EncodeSide result;
  if (s.rows == nullptr) return result;
  result.rows = s.rows;
  result.token_stride = s.token_stride;
  result.head_stride = s.head_stride;
  result.transform = s.transform;
  result.transform_image = s.transform_image;
  result.mean = s.mean;
  result.clip_ratio = s.clip_ratio;
  const PlaneLayout layout = layout_of(s.quant, head_dim, side == Side::kKey ? "keys" : "values");
  result.plane = device_plane(layout, side);
  result.scale_fit = layout.quant.scale_fit;
  return result;
}

void copy_text(char* to, std::size_t size, const char* text) {
  std::snprintf(to, size, "%s", text);
}

}  // namespace
}  // namespace oscar::cuda

using oscar::cuda::fail;
using oscar::cuda::guarded;
using oscar::cuda::result_of;

int oscar_cuda_abi_version(void) { return OSCAR_CUDA_ABI_VERSION; }

const char* oscar_cuda_last_error(void) { return oscar::cuda::last_error; }

const char* oscar_cuda_build(void) { return oscar::cuda::kBuildText.choice; }

oscar_status oscar_cuda_check_device(int device) {
  return guarded([&] {
    oscar::cuda::usable_gpu(device);
    return OSCAR_OK;
  });
}

oscar_status oscar_cuda_plan_create(const oscar_cuda_shape* shape, int device,
                                    oscar_cuda_plan** out) {
  if (shape == nullptr || out == nullptr) {
    return fail(OSCAR_INVALID_ARGUMENT, "shape and out must not be NULL");
  }
  return guarded([&] {
    const oscar::cuda::AttendShape wanted = oscar::cuda::shape_of(*shape);
    *out = new oscar_cuda_plan{oscar::cuda::plan_attend(wanted, oscar::cuda::device_info(device))};
    return OSCAR_OK;
  });
}

void oscar_cuda_plan_free(oscar_cuda_plan* plan) { delete plan; }

oscar_status oscar_cuda_plan_describe(const oscar_cuda_plan* plan, oscar_cuda_plan_info* out) {
  if (plan == nullptr || out == nullptr) {
    return fail(OSCAR_INVALID_ARGUMENT, "plan and out must not be NULL");
  }
  return guarded([&] {
    *out = {};
    oscar::cuda::copy_text(out->kernel, sizeof out->kernel,
                           oscar::cuda::kernel_name(plan->plan.kernel));
    oscar::cuda::copy_text(out->reason, sizeof out->reason, plan->plan.reason.c_str());
    out->workspace_bytes = plan->plan.workspace_bytes;
    out->key_plane_bytes = static_cast<std::int32_t>(plan->plan.shape.key.plane_bytes());
    out->value_plane_bytes = static_cast<std::int32_t>(plan->plan.shape.value.plane_bytes());
    return OSCAR_OK;
  });
}

oscar_status oscar_cuda_prepare(const oscar_cuda_plan* plan, void* workspace,
                                uint64_t workspace_bytes, void* stream) {
  if (plan == nullptr) return fail(OSCAR_INVALID_ARGUMENT, "plan must not be NULL");
  return result_of(oscar::cuda::prepare_attend(plan->plan, workspace, workspace_bytes,
                                               static_cast<cudaStream_t>(stream)));
}

oscar_status oscar_cuda_attend(const oscar_cuda_plan* plan, const oscar_cuda_attend_args* args,
                               void* workspace, uint64_t workspace_bytes, void* stream) {
  if (plan == nullptr || args == nullptr || workspace == nullptr) {
    return fail(OSCAR_INVALID_ARGUMENT, "plan, args and workspace must not be NULL");
  }
  return guarded([&] {
    return result_of(
        oscar::cuda::run_attend(plan->plan, oscar::cuda::params_of(plan->plan.shape, *args),
                                workspace, workspace_bytes, static_cast<cudaStream_t>(stream)));
  });
}

oscar_status oscar_cuda_encode(const oscar_cuda_encode_args* args, void* stream) {
  if (args == nullptr) return fail(OSCAR_INVALID_ARGUMENT, "args must not be NULL");
  return guarded([&] {
    const oscar_cuda_encode_args& a = *args;
    oscar::cuda::EncodeParams p;
    p.sides[0] = oscar::cuda::side_of(a.key, a.head_dim, oscar::cuda::Side::kKey);
    p.sides[1] = oscar::cuda::side_of(a.value, a.head_dim, oscar::cuda::Side::kValue);
    // The value plane follows the key plane, whether keys are encoded now or not.
    p.sides[1].plane_offset_bytes = static_cast<std::int32_t>(
        oscar::cuda::layout_of(a.key.quant, a.head_dim, "keys").plane_bytes());
    p.num_tokens = a.num_tokens;
    p.num_kv_heads = a.num_kv_heads;
    p.pages = a.pages;
    p.page_stride_bytes = a.page_stride_bytes;
    p.head_stride_bytes = a.head_stride_bytes;
    p.slots = a.slots;
    p.positions = a.positions;
    p.rope_tile = a.mean_tile;
    p.rope_start = a.mean_start;
    p.num_pairs = a.mean_pairs;
    p.interleaved = a.interleaved != 0;
    p.copies = a.copies;
    p.copy_slots = a.copy_slots;
    p.rows_per_block = a.rows_per_block;
    p.raw_key_copies = a.raw_key_copies != 0;
    p.non_finite = a.non_finite;
    return result_of(oscar::cuda::run_encode(p, static_cast<cudaStream_t>(stream)));
  });
}

uint64_t oscar_cuda_transform_image_bytes(int32_t num_kv_heads, int32_t head_dim) {
  return oscar::cuda::transform_image_bytes(num_kv_heads, head_dim);
}

oscar_status oscar_cuda_transform_image(const float* matrices, int32_t num_kv_heads,
                                        int32_t head_dim, void* image, void* stream) {
  return result_of(oscar::cuda::run_prepare_transform(matrices, num_kv_heads, head_dim, image,
                                                      static_cast<cudaStream_t>(stream)));
}

oscar_status oscar_cuda_transform_rows(const uint16_t* rows, uint16_t* out, int64_t token_stride,
                                       int64_t out_token_stride, const void* image,
                                       int64_t num_tokens, int32_t num_kv_heads,
                                       int32_t heads_per_kv_head, int32_t head_dim, void* stream) {
  return result_of(
      oscar::cuda::run_transform_rows({rows, out, token_stride, out_token_stride, image, num_tokens,
                                       num_kv_heads, heads_per_kv_head, head_dim},
                                      static_cast<cudaStream_t>(stream)));
}

oscar_status oscar_cuda_dequantize(const oscar_cuda_dequantize_args* args, void* stream) {
  if (args == nullptr) return fail(OSCAR_INVALID_ARGUMENT, "args must not be NULL");
  return guarded([&] {
    const oscar_cuda_dequantize_args& a = *args;
    oscar::cuda::DequantizeParams p;
    const auto key = oscar::cuda::layout_of(a.key, a.head_dim, "keys");
    const auto value = oscar::cuda::layout_of(a.value, a.head_dim, "values");
    p.sides[0] = {a.keys, oscar::cuda::device_plane(key, oscar::cuda::Side::kKey), 0};
    p.sides[1] = {a.values, oscar::cuda::device_plane(value, oscar::cuda::Side::kValue),
                  static_cast<std::int32_t>(key.plane_bytes())};
    p.pages = a.pages;
    p.page_stride_bytes = a.page_stride_bytes;
    p.head_stride_bytes = a.head_stride_bytes;
    p.block_table = a.block_table;
    p.first_token = a.first_token;
    p.num_tokens = a.num_tokens;
    p.token_stride = a.token_stride;
    p.num_kv_heads = a.num_kv_heads;
    return result_of(oscar::cuda::run_dequantize(p, static_cast<cudaStream_t>(stream)));
  });
}

// Attention over coded pages on CUDA: one query token a sequence, a few (speculative verify), or a
// chunk (prefill over history).
//
//   AttendPlan plan = plan_attend(shape, device_info(device));      once per shape
//   prepare_attend(plan, workspace, bytes, stream);       once per workspace: zeroes the counters
//   run_attend(plan, params, workspace, bytes, stream);   every layer and step; may be captured in
//                                                         a graph
//
// Lengths, tables and queries are read on the device, so a captured graph serves later steps with
// other contents.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/plan.h"
#include "cuda/status.h"

namespace oscar::cuda {

// Throws Error(kUnsupported) when the device is none that this build runs on: usable_gpu() of
// gpu.h.
DeviceInfo device_info(int device);

Status prepare_attend(const AttendPlan& plan, void* workspace, std::size_t workspace_bytes,
                      cudaStream_t stream) noexcept;

// Launches one kernel on `stream` (two with params.out_image where the kernel leaves that to
// another: all but most of the Hopper decode kernels);
// allocates and synchronises nothing. params: see AttendParams;
// the plan's fields are filled in here. With params.overlap_previous the kernel is launched
// programmatically: the kernel before it on the stream may still run while block table, lengths and
// coded pages older than recent_tokens are read, so it must not write those.
Status run_attend(const AttendPlan& plan, AttendParams params, void* workspace,
                  std::size_t workspace_bytes, cudaStream_t stream) noexcept;

// Whether a launch since prepare_attend met a page id outside [0, num_pages): it read page 0
// instead. Synchronises with the stream. Builds without OSCAR_CUDA_CHECKED do not look, and report
// nothing.
Status read_faults(const AttendPlan& plan, const void* workspace, cudaStream_t stream) noexcept;

// Kernel launches of one device function, for dispatch tables.
struct AttendFunction {
  void (*function)(AttendParams) = nullptr;
  int threads = 0;
  int shared_bytes = 0;
  bool transforms_out = false;  // serves AttendParams::out_image
};
namespace sm90 {
AttendFunction decode_function(int head_dim, int key_bits, int value_bits, bool affine,
                               int head_tiles, int num_seqs, bool has_mean) noexcept;
AttendFunction prefill_function(int head_dim, int key_bits, int value_bits, bool has_mean) noexcept;
// Of trellis codes in keys and values.
AttendFunction decode_trellis_function(int head_dim, int head_tiles, int num_seqs,
                                       bool has_mean) noexcept;
AttendFunction prefill_trellis_function(int head_dim, bool has_mean) noexcept;
}  // namespace sm90
namespace sm80 {
AttendFunction attend_function(int head_dim, int rows_per_block, int num_groups,
                               bool has_mean) noexcept;
}

}  // namespace oscar::cuda

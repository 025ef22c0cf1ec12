// Which kernel runs, and how: pure host arithmetic, the same without a GPU.
//
// plan() chooses, run() (attend.h, encode.h) launches. Nothing is chosen silently: AttendPlan says
// which kernel and why not the fast one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/attend_params.h"
#include "format/plane_layout.h"

namespace oscar::cuda {

// What the plan needs to know about a card; device_info() of attend.h reads it from CUDA.
struct DeviceInfo {
  int compute_capability = 0;  // 10·major + minor
  int num_sms = 0;
  int shared_bytes_per_block = 0;  // the opt-in limit
  bool has_hopper_code = true;     // of the build
};

struct AttendShape {
  int num_seqs = 0;
  int num_queries = 1;  // tokens of each sequence that ask; decode 1..8, prefill a chunk
  int num_q_heads = 0, num_kv_heads = 0;  // ratio 1..16
  PlaneLayout key, value;                 // the same head size
  std::int64_t max_seq_len = 0;           // no sequence gets longer while the plan is in use
  std::int32_t sink_tokens = 0, recent_tokens = 0;
  std::int32_t sliding_window = 0;
  bool has_copies = false;
  bool has_mean = false;
  int mean_pairs = 0;  // MeanTerm::num_pairs
};

enum class AttendKernel {
  kHopperDecode,   // sm90/decode: bulk copies, integer dots
  kHopperPrefill,  // sm90/prefill: chunks of queries, 128 rows share what is unpacked
  kGeneric,        // sm80/attend: pages dequantised in shared memory; every shape
};
const char* kernel_name(AttendKernel kernel) noexcept;

struct AttendPlan {
  AttendShape shape;
  AttendKernel kernel = AttendKernel::kGeneric;
  std::string reason;      // why the kernels before this one do not serve the shape
  int rows_per_block = 0;  // query rows (query tokens × heads of a KV head) of one block
  int num_row_blocks = 0;
  int num_splits = 0;  // 0: equal ranges over all sequences (AttendParams::num_splits)
  int grid = 0;
  std::size_t counter_bytes =
      0;  // at the start of the workspace; zero before the first launch, left zero by each
  std::size_t workspace_bytes = 0;  // all of it; 256-byte aligned
};

// Throws Error(kInvalidArgument | kUnsupported) with the value and what is legal.
AttendPlan plan_attend(const AttendShape& shape, const DeviceInfo& device);

// The same with the kernel given; throws Error(kUnsupported) with the reason when it does not serve
// the shape.
AttendPlan plan_attend(const AttendShape& shape, const DeviceInfo& device, AttendKernel kernel);

// Checks pointers, alignment, strides and that params describe the planned shape. Empty: fine; else
// one sentence.
std::string check_params(const AttendPlan& plan, const AttendParams& params,
                         std::size_t workspace_bytes);

}  // namespace oscar::cuda

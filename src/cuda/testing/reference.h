// Attention in fp64 on the GPU, one block a (query, head), straight from the definition: what the
// kernels are judged against.
#pragma once

#include <vector>

#include "cuda/attend_params.h"

namespace oscar::cuda::testing {

struct ReferenceResult {
  std::vector<double> out;  // [num_seqs·num_queries][num_q_heads][head_dim]
  std::vector<double> lse;  // [num_seqs·num_queries][num_q_heads]
};

// params as for run_attend (the plan's fields are ignored); max_seq_len bounds the lengths on the
// device.
ReferenceResult reference_attend(const AttendParams& params, std::int64_t max_seq_len);

}  // namespace oscar::cuda::testing

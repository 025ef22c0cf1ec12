#include <algorithm>
#include <string>

#include "attention/scratch.h"
#include "base/error.h"

namespace oscar::attention {
namespace {

// A block's rows times a page of keys: large enough that decoding the page is a small part of the
// work, small enough that queries, outputs and logits of 128 channels stay in a 512 KiB cache.
constexpr std::int64_t kRowsPerBlock = 96;
// A split shorter than this costs more in setting up and merging than it gains.
constexpr std::int64_t kMinPagesPerSplit = 4;
constexpr int kMaxSplitsPerThread = 4;

void require(bool ok, const char* name, std::int64_t value, const std::string& legal) {
  if (ok) return;
  throw Error(ErrorCode::kInvalidArgument, std::string("attention plan: ") + name + " is " +
                                               std::to_string(value) + "; it must be " + legal);
}

bool legal_head_dim(int head_dim) {
  return head_dim >= kMinHeadDim && head_dim <= kMaxHeadDim && head_dim % kHeadDimMultiple == 0;
}

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Splits of the cells so that `num_tasks` equal tasks keep every thread busy: the fewest whose last
// round is at least nine tenths full.
std::int64_t choose_splits(std::int64_t num_tasks, std::int64_t num_pages, int num_threads) {
  const std::int64_t most =
      std::clamp<std::int64_t>(num_pages / kMinPagesPerSplit, 1, kMaxSplitsPerThread * num_threads);
  std::int64_t best = 1;
  double best_use = 0;
  for (std::int64_t splits = 1; splits <= most; ++splits) {
    const std::int64_t tasks = num_tasks * splits;
    const double use = static_cast<double>(tasks) /
                       static_cast<double>(divide_up(tasks, num_threads) * num_threads);
    if (use > best_use) {
      best = splits;
      best_use = use;
    }
    if (use >= 0.9) break;
  }
  return best;
}

}  // namespace

Scratch carve_scratch(const Plan& plan, Carver* carver) {
  const std::int64_t rows = rows_per_block(plan);
  const std::int64_t dk = plan.shape.head_dim_k, dv = plan.shape.head_dim_v;
  Scratch s;
  s.q_raw = carver->take<float>(rows * dk);
  s.q_rotated = carver->take<float>(rows * dk);
  s.q_bytes = carver->take<std::int8_t>(2 * rows * dk);
  s.q_scales = carver->take<float>(rows * dk / kGroupMultiple);
  s.q_sums = carver->take<float>(rows * dk / kGroupMultiple);
  s.k_tile = carver->take<float>(kPageSize * dk);
  s.v_tile = carver->take<float>(kPageSize * dv);
  s.copies = carver->take<bf16_t>(kPageSize * std::max(dk, dv));
  s.logits = carver->take<float>(rows * kPageSize);
  s.copy_logits = carver->take<float>(rows * kPageSize);
  s.rescale = carver->take<float>(rows);
  s.finished = carver->take<float>(rows * dv);
  s.mean_constants = carver->take<float>(rows);
  s.mean_pairs = carver->take<float>(rows * kernels::kMeanPairFloats);
  s.mean_turn = carver->take<float>(std::int64_t{2} * kernels::kMeanPairFloats);
  s.visible = carver->take<std::uint64_t>(plan.queries_per_block);
  s.copied = carver->take<std::uint64_t>(plan.queries_per_block);
  return s;
}

State carve_state(const Plan& plan, Carver* carver) {
  const std::int64_t rows = rows_per_block(plan), dv = plan.shape.head_dim_v;
  State s;
  s.out_codes = carver->take<float>(rows * dv);
  s.out_copies = carver->take<float>(rows * dv);
  s.max = carver->take<float>(rows);
  s.sum = carver->take<float>(rows);
  s.copy_weight = carver->take<float>(rows);
  return s;
}

Plan plan(const Shape& shape, int num_threads) {
  require(num_threads >= 1, "num_threads", num_threads, "at least 1");
  require(shape.num_queries >= 0, "num_queries", shape.num_queries, "at least 0");
  require(shape.num_kv >= 0, "num_kv", shape.num_kv, "at least 0");
  require(shape.num_kv_heads >= 1, "num_kv_heads", shape.num_kv_heads, "at least 1");
  require(shape.num_q_heads >= 1 && shape.num_q_heads % shape.num_kv_heads == 0, "num_q_heads",
          shape.num_q_heads, "a multiple of num_kv_heads, " + std::to_string(shape.num_kv_heads));
  const std::string dims = "a multiple of " + std::to_string(kHeadDimMultiple) + " from " +
                           std::to_string(kMinHeadDim) + " to " + std::to_string(kMaxHeadDim);
  require(legal_head_dim(shape.head_dim_k), "head_dim_k", shape.head_dim_k, dims);
  require(legal_head_dim(shape.head_dim_v), "head_dim_v", shape.head_dim_v, dims);

  Plan plan;
  plan.shape = shape;
  plan.num_threads = num_threads;
  const std::int64_t group = shape.num_q_heads / shape.num_kv_heads;
  const std::int64_t num_pages = divide_up(shape.num_kv, kPageSize);
  const std::int64_t most_queries = std::max<std::int64_t>(1, kRowsPerBlock / group);
  plan.num_query_blocks = divide_up(shape.num_queries, most_queries);
  plan.queries_per_block = std::max<std::int64_t>(
      1, divide_up(shape.num_queries, std::max<std::int64_t>(1, plan.num_query_blocks)));
  plan.num_query_blocks = divide_up(shape.num_queries, plan.queries_per_block);

  const std::int64_t splits = choose_splits(num_blocks(plan), num_pages, num_threads);
  plan.pages_per_split = std::max<std::int64_t>(1, divide_up(num_pages, splits));
  plan.num_splits =
      static_cast<int>(std::max<std::int64_t>(1, divide_up(num_pages, plan.pages_per_split)));

  Carver carver(nullptr);
  for (int thread = 0; thread < num_threads; ++thread) carve_scratch(plan, &carver);
  const std::size_t scratch_bytes = carver.used_bytes();
  Carver state(nullptr);
  carve_state(plan, &state);
  plan.workspace_bytes =
      scratch_bytes + state.used_bytes() * static_cast<std::size_t>(num_states(plan));
  return plan;
}

}  // namespace oscar::attention

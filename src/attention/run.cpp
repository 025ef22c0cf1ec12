#include <algorithm>
#include <functional>

#include "attention/block.h"
#include "base/parallel.h"

namespace oscar::attention {
namespace {

// The n-th piece of equal, aligned pieces that `carve` makes.
template <typename Piece>
Piece nth_piece(std::byte* base, std::int64_t n, const Plan& plan,
                Piece (*carve)(const Plan&, Carver*)) {
  Carver size(nullptr);
  carve(plan, &size);
  Carver carver(base + static_cast<std::size_t>(n) * size.used_bytes());
  return carve(plan, &carver);
}

}  // namespace

void run(const Plan& plan, const Params& params, void* workspace) noexcept {
  auto* const base = static_cast<std::byte*>(workspace);
  Carver all_scratch(nullptr);
  for (int thread = 0; thread < plan.num_threads; ++thread) carve_scratch(plan, &all_scratch);
  std::byte* const states = base + all_scratch.used_bytes();
  const int num_splits = plan.num_splits;
  const std::int64_t num_pages = (plan.shape.num_kv + kPageSize - 1) / kPageSize;
  const auto block_id = [&](std::int64_t block) {
    return BlockId{static_cast<int>(block / plan.num_query_blocks), block % plan.num_query_blocks};
  };

  const auto attend = [&](std::int64_t task, int thread) {
    const std::int64_t split = task % num_splits;
    const BlockId id = block_id(task / num_splits);
    const Scratch scratch = nth_piece(base, thread, plan, carve_scratch);
    const State state = nth_piece(states, num_splits == 1 ? thread : task, plan, carve_state);
    const BlockRows rows(plan, id);
    clear_state(state, rows.num_rows, plan.shape.head_dim_v);
    Block block(plan, params, id, scratch, state);
    const std::int64_t first_page = split * plan.pages_per_split;
    block.visit_pages(first_page, std::min(num_pages, first_page + plan.pages_per_split));
    if (num_splits == 1) finish_block(params, rows, state, scratch.finished);
  };
  parallel_for(plan.num_threads, num_blocks(plan) * num_splits, std::cref(attend));
  if (num_splits == 1) return;

  const auto merge_splits = [&](std::int64_t block, int thread) {
    const Scratch scratch = nth_piece(base, thread, plan, carve_scratch);
    const BlockRows rows(plan, block_id(block));
    const State state = nth_piece(states, block * num_splits, plan, carve_state);
    for (int split = 1; split < num_splits; ++split) {
      merge_states(state, nth_piece(states, block * num_splits + split, plan, carve_state),
                   rows.num_rows, plan.shape.head_dim_v);
    }
    finish_block(params, rows, state, scratch.finished);
  };
  parallel_for(plan.num_threads, num_blocks(plan), std::cref(merge_splits));
}

}  // namespace oscar::attention

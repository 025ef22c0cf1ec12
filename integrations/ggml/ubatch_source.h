// Reads a ubatch from the graph that writes it: which cells, which positions, which queries see
// what.
#pragma once

#include <ggml-backend-impl.h>

#include <cstdint>
#include <span>
#include <vector>

#include "cache_group.h"
#include "visibility.h"

namespace oscar::ggml_plugin {

// Fills rows and positions of the group's ubatch from `write`, the first SET_ROWS of the graph over
// it, and opens it.
void open_ubatch(const ggml_tensor* write, ggml_cgraph* graph, CacheGroup* group);

// From an attention node over the group.
Visibility visibility_of(const ggml_tensor* attention, const CacheGroup& group);

// Positions where no ROPE node names them: one more than the last cell that a token sees, 0 when it
// sees none but itself. cell_positions: [num_rows], of the cells as they were before the ubatch.
std::vector<std::int32_t> positions_from_mask(std::span<const std::int64_t> rows,
                                              std::vector<std::int32_t> cell_positions,
                                              const Visibility& visibility);

}  // namespace oscar::ggml_plugin

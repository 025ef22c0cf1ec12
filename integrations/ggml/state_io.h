// Saving, restoring and copying cells: what llama.cpp does with rows of cache tensors outside
// graphs. All throw Error.
#pragma once

#include <cstdint>
#include <span>

#include "cache_group.h"
#include "tensors.h"

namespace oscar::ggml_plugin {

// Rows as state rows (state_row.h), row_values·2 bytes each.
void save_rows(CacheGroup* group, GroupLayer& layer, Side side, RowRange rows,
               std::span<std::uint8_t> out);

// The reverse, keys of the first layer first. Until every layer and side of a cell was restored,
// and where a row does not fit, a graph that attends the cell fails with the reason; the first
// reason of a row that does not fit is also returned ("" when all fit).
std::string restore_rows(CacheGroup* group, GroupLayer& layer, Side side, RowRange rows,
                         std::span<const std::uint8_t> in);

// Cells that were to be restored and could not be: attending one fails with `reason`.
void refuse_rows(CacheGroup* group, RowRange rows, const std::string& reason);

// Rows as F16 values, exact copies where there are: for attention that another device computes.
void read_values(CacheGroup* group, GroupLayer& layer, Side side, RowRange rows,
                 std::span<std::uint16_t> out);

// Cells of one range to another of the same length: codes, positions, copies. Called for every
// layer and side; the first layer's keys move what the layers share.
void copy_rows(CacheGroup* group, GroupLayer& layer, Side side, RowRange from, RowRange to);

}  // namespace oscar::ggml_plugin

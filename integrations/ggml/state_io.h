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

// The reverse. A row that does not fit makes its cell unusable: the next graph that attends it
// fails with the reason, which is also returned ("" when all rows fit).
std::string restore_rows(CacheGroup* group, GroupLayer& layer, Side side, RowRange rows,
                         std::span<const std::uint8_t> in);

// Rows as F16 values, exact copies where there are: for attention that another device computes.
void read_values(CacheGroup* group, GroupLayer& layer, Side side, RowRange rows,
                 std::span<std::uint16_t> out);

// Cells of one range to another of the same length: codes, positions, copies. Called for every
// layer and side; the first layer's keys move what the layers share.
void copy_rows(CacheGroup* group, GroupLayer& layer, Side side, RowRange from, RowRange to);

}  // namespace oscar::ggml_plugin

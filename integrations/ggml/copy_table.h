// Which cells have an exact copy, and where: a fixed number of slots shared by all layers of a
// group. Pure bookkeeping.
//
// A ubatch is a transaction. begin() decides which of its tokens get a slot and which old copies
// end with it; until commit() the old copies stay where they are, because earlier queries of the
// ubatch still need them. Layers move their rows one after the other between the two. abandon()
// undoes a ubatch that not every layer has finished: what it touched has no copy any more.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "visibility.h"

namespace oscar::ggml_plugin {

struct Window {
  std::int32_t sink_tokens = 0;    // positions below it keep their copy
  std::int32_t recent_tokens = 0;  // and the last so many tokens of a sequence
  bool empty() const { return sink_tokens == 0 && recent_tokens == 0; }
};

class CopyTable {
 public:
  // Token `token` of the ubatch goes to slot `slot`.
  struct Move {
    std::int64_t token;
    std::int32_t slot;
  };

  CopyTable() = default;
  CopyTable(std::int64_t num_rows, std::int64_t capacity, Window window);

  std::int64_t capacity() const { return static_cast<std::int64_t>(cells_.size()); }
  std::int64_t num_used() const { return num_used_; }
  std::int32_t slot(std::int64_t row) const { return slots_[row]; }
  const std::vector<std::int32_t>& slots() const { return slots_; }  // [num_rows], −1: no copy

  // rows, positions: the ubatch's tokens. cell_positions: [num_rows], of all cells, the new ones
  // included.
  const std::vector<Move>& begin(std::span<const std::int64_t> rows,
                                 std::span<const std::int32_t> positions,
                                 std::span<const std::int32_t> cell_positions,
                                 const Visibility& visibility);
  void commit();
  void abandon();
  const std::vector<Move>& moves() const { return moves_; }

  // Outside ubatches: a restored or copied cell. assign() gives −1 when capacity is 0.
  std::int32_t assign(std::int64_t row);
  void drop(std::int64_t row);
  void clear();

 private:
  class LastSeen;
  void end_old_copies(const LastSeen& last_seen, std::span<const std::int32_t> cell_positions);
  std::vector<std::int64_t> tokens_to_keep(std::span<const std::int64_t> rows,
                                           std::span<const std::int32_t> positions,
                                           const LastSeen& last_seen) const;
  bool needed(std::int32_t position, std::int32_t last_position) const;
  void release(std::int32_t slot);

  Window window_;
  std::vector<std::int32_t> slots_;      // [num_rows]
  std::vector<std::int64_t> cells_;      // [capacity] row that the slot holds, −1: free
  std::vector<std::uint64_t> last_use_;  // [capacity] ubatch in which a query last needed it
  std::vector<std::int32_t> free_;       // slots, the lowest last
  std::uint64_t now_ = 0;
  std::int64_t num_used_ = 0;

  std::vector<Move> moves_;
  std::vector<std::int64_t> move_rows_;  // row of each move
  std::vector<std::int32_t> ending_;     // slots whose copy ends with this ubatch
};

}  // namespace oscar::ggml_plugin

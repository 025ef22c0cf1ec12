// One side of one layer for methods with a layout of their own (methods/row_coder.h): which cell
// lies in which group of tokens, and the groups' bytes.
//
// Groups are of tokens, never of cells. A token continues the group of the token before it in its
// sequence while the positions follow each other; a group ends before a position that is a multiple
// of group_tokens. Its keys wait in BF16 until it ends, and are coded then, once, from those BF16
// rows. So the bytes of a token depend on the keys of its group alone, not on chunks, cells or
// other sequences; and behind a truncation the next multiple begins afresh.
//
// Coded groups never change; cells share them. A group is free again when its last cell is
// dropped. Where more sequences have a group in the making than there is room for, the one that
// waited longest is coded as short as it is: that costs room, never correctness.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "cache/layer_codec.h"
#include "methods/row_coder.h"

namespace oscar::cache {

// Bytes that the store of num_cells cells takes, for num_sequences sequences at once.
std::int64_t store_bytes(const methods::RowCoder& coder, std::int64_t num_cells,
                         std::int64_t num_sequences);

// Not thread-safe, but for read(). The codec of a call has coders of one shape always.
class GroupStore {
 public:
  // memory: store_bytes() bytes, zeros; outlives the store.
  GroupStore(const methods::RowCoder& coder, std::int64_t num_cells, std::int64_t num_sequences,
             std::uint8_t* memory);

  // Row i goes to cells[i]; what the cell held is dropped. predecessors[i]: the cell of the token
  // before it in its sequence (earlier rows of this call included), −1: none is here. Raw rows.
  // Returns false when a row held NaN or Inf or what BF16 cannot hold: it is stored as zeros.
  // Throws Error(kUnsupported) when truncated sequences have left too many groups partly used.
  bool write(const SideCoder& side, const Rows& rows, std::span<const std::int64_t> cells,
             std::span<const std::int64_t> predecessors, const std::int32_t* positions,
             int num_threads);

  // Rotated rows of cells [first, first + count): [count][num_kv_heads][head_dim]; zeros where
  // nothing was written. positions: [count] of the cells.
  void read(const SideCoder& side, std::int64_t first, std::int64_t count,
            const std::int32_t* positions, float* rows) const;

  // Cell `to` holds what `from` holds. Copies of one group's cells in ascending order stay a group.
  void copy(const SideCoder& side, std::int64_t from, std::int64_t to);
  void drop(std::int64_t cell);
  void clear();

  bool holds(std::int64_t cell) const { return refs_[cell] >= 0; }
  // Bytes of the groups in use: codes of those that are coded, BF16 rows of those that wait.
  std::uint64_t used_bytes() const;
  // The coded group of the cell and the token's place in it; nothing while it waits. For tests.
  struct Place {
    std::span<const std::uint8_t> bytes;
    int offset;
  };
  Place coded_place(std::int64_t cell) const;

 private:
  struct Waiting {
    std::vector<std::int64_t> cells;      // of its tokens; −1: dropped
    std::vector<std::int32_t> positions;  // consecutive
    std::uint64_t last_use = 0;           // 0: free
    std::uint64_t serial = 0, copied_from = 0;
  };

  std::int64_t row_bytes() const { return row_values_ * std::int64_t{sizeof(bf16_t)}; }
  std::uint8_t* group(std::int64_t id) const { return memory_ + id * group_bytes_; }
  bf16_t* waiting_row(std::size_t index, std::size_t token) const;
  std::size_t waiting_index(std::int64_t ref) const {
    return static_cast<std::size_t>(ref / group_tokens_ - num_groups_);
  }
  bool is_waiting(std::int64_t ref) const { return ref / group_tokens_ >= num_groups_; }
  std::size_t start_group(const SideCoder& side);
  void append(const SideCoder& side, std::size_t index, std::int64_t cell, std::int32_t position,
              const bf16_t* row);
  void finish(const SideCoder& side, std::size_t index);
  std::int64_t take_group();

  int group_tokens_;
  std::int64_t group_bytes_, row_values_, num_groups_;
  std::uint8_t* memory_;
  std::vector<std::int64_t> refs_;  // [num_cells] group·group_tokens + offset; waiting ones follow
                                    // the coded ones; −1: nothing
  std::vector<std::int32_t> live_;  // [num_groups] cells that hold a part
  std::vector<std::int32_t> used_;  // [num_groups] bytes
  std::vector<std::int64_t> free_;
  std::vector<Waiting> waiting_;
  std::uint64_t clock_ = 0;
};

}  // namespace oscar::cache

#include "copy_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace oscar::ggml_plugin {
namespace {

constexpr std::uint16_t kSeen = 0;

// One stream; every token sees all cells of `sequence_cells` at or before its own position.
struct Stream {
  explicit Stream(std::int64_t num_cells) : positions(num_cells, -1), sequence(num_cells, -1) {}

  // Writes tokens of one sequence at `cells`, positions from `first` on; returns the cells that
  // have a copy afterwards.
  void write(CopyTable* table, int seq, const std::vector<std::int64_t>& cells,
             std::int32_t first) {
    std::vector<std::int32_t> token_positions;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      token_positions.push_back(first + static_cast<std::int32_t>(i));
      positions[cells[i]] = token_positions.back();
      sequence[cells[i]] = seq;
    }
    const auto num_cells = std::ssize(positions);
    mask.assign(cells.size() * num_cells, Visibility::kHidden);
    for (std::size_t query = 0; query < cells.size(); ++query) {
      for (std::int64_t cell = 0; cell < num_cells; ++cell) {
        if (sequence[cell] == seq && positions[cell] <= token_positions[query])
          mask[query * num_cells + cell] = kSeen;
      }
    }
    const Visibility visibility{mask.data(),       num_cells, 0,        num_cells,
                                std::ssize(cells), 0,         num_cells};
    table->begin(cells, token_positions, positions, visibility);
  }

  std::set<std::int32_t> copied_positions(const CopyTable& table, int seq = 0) const {
    std::set<std::int32_t> result;
    for (std::int64_t cell = 0; cell < std::ssize(positions); ++cell) {
      if (table.slot(cell) >= 0 && sequence[cell] == seq) result.insert(positions[cell]);
    }
    return result;
  }

  std::vector<std::int32_t> positions;
  std::vector<int> sequence;
  std::vector<std::uint16_t> mask;
};

std::vector<std::int64_t> range(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> cells;
  for (std::int64_t i = 0; i < count; ++i) cells.push_back(first + i);
  return cells;
}

// Sinks and the last tokens, whatever the chunks: the same set for chunks of 1, 3, 7 and all at
// once.
TEST(CopyTable, KeepsSinksAndRecentTokensForEveryChunking) {
  constexpr std::int64_t kTokens = 40;
  const Window window{3, 5};
  for (const std::int64_t chunk : {1, 3, 7, 40}) {
    CopyTable table(64, window.sink_tokens + window.recent_tokens, window);
    Stream stream(64);
    for (std::int64_t at = 0; at < kTokens; at += chunk) {
      stream.write(&table, 0, range(at, std::min(chunk, kTokens - at)),
                   static_cast<std::int32_t>(at));
      table.commit();
    }
    EXPECT_EQ(stream.copied_positions(table), (std::set<std::int32_t>{0, 1, 2, 35, 36, 37, 38, 39}))
        << "chunks of " << chunk;
    EXPECT_EQ(table.num_used(), 8);
  }
}

// Slots are distinct, and an old copy stays in place until the ubatch is whole.
TEST(CopyTable, OldCopiesStayUntilCommit) {
  CopyTable table(32, 4, {0, 4});
  Stream stream(32);
  stream.write(&table, 0, range(0, 4), 0);
  table.commit();
  stream.write(&table, 0, range(4, 2), 4);
  EXPECT_EQ(stream.copied_positions(table), (std::set<std::int32_t>{0, 1, 2, 3}));
  ASSERT_EQ(table.moves().size(), 2u);
  table.commit();
  EXPECT_EQ(stream.copied_positions(table), (std::set<std::int32_t>{2, 3, 4, 5}));
  std::set<std::int32_t> slots;
  for (std::int64_t cell = 2; cell < 6; ++cell) slots.insert(table.slot(cell));
  EXPECT_EQ(slots.size(), 4u);
}

// A ubatch that failed half-way leaves no slot that some layer may have overwritten.
TEST(CopyTable, AbandonedUbatchLeavesNothingBehind) {
  CopyTable table(32, 4, {0, 4});
  Stream stream(32);
  stream.write(&table, 0, range(0, 4), 0);
  table.commit();
  stream.write(&table, 0, range(4, 2), 4);
  table.abandon();
  EXPECT_EQ(stream.copied_positions(table), (std::set<std::int32_t>{2, 3}));
  stream.write(&table, 0, range(6, 4), 6);
  table.commit();
  EXPECT_EQ(stream.copied_positions(table), (std::set<std::int32_t>{6, 7, 8, 9}));
  EXPECT_EQ(table.num_used(), 4);
}

TEST(CopyTable, WritingACellDropsItsOldCopy) {
  CopyTable table(8, 8, {2, 2});
  Stream stream(8);
  stream.write(&table, 0, range(0, 4), 0);
  table.commit();
  EXPECT_GE(table.slot(0), 0);
  stream.write(&table, 0, {0}, 4);  // the cell is used again, now for position 4
  table.commit();
  EXPECT_EQ(stream.copied_positions(table), (std::set<std::int32_t>{1, 3, 4}));
}

// Two sequences in one stream: with room for both each keeps its own window; with room for one the
// sequence in use wins.
TEST(CopyTable, SequencesShareSlotsByLastUse) {
  const Window window{1, 2};
  for (const std::int64_t windows : {1, 2}) {
    CopyTable table(64, windows * 3, window);
    Stream stream(64);
    for (std::int32_t p = 0; p < 6; ++p) {
      stream.write(&table, 0, {p}, p);
      table.commit();
    }
    for (std::int32_t p = 0; p < 6; ++p) {
      stream.write(&table, 1, {32 + p}, p);
      table.commit();
    }
    EXPECT_EQ(stream.copied_positions(table, 1), (std::set<std::int32_t>{0, 4, 5}));
    const auto first = stream.copied_positions(table, 0);
    EXPECT_EQ(first, windows == 2 ? (std::set<std::int32_t>{0, 4, 5}) : std::set<std::int32_t>{});
  }
}

TEST(CopyTable, AssignEvictsTheLongestUnused) {
  CopyTable table(16, 2, {0, 2});
  EXPECT_GE(table.assign(3), 0);
  EXPECT_GE(table.assign(4), 0);
  EXPECT_EQ(table.assign(4), table.slot(4));
  EXPECT_GE(table.assign(5), 0);
  EXPECT_EQ(table.slot(3), -1);
  EXPECT_GE(table.slot(4), 0);
  table.clear();
  EXPECT_EQ(table.num_used(), 0);
  EXPECT_EQ(CopyTable(16, 0, {}).assign(3), -1);
}

// Two sequences share a prefix in one ubatch: its end is old for one and recent for the other, so
// it keeps its copy, whichever comes first.
TEST(CopyTable, SharedPrefixIsKeptForTheSequenceThatNeedsIt) {
  const Window window{0, 3};
  for (const bool ahead_first : {true, false}) {
    CopyTable table(64, 12, window);
    Stream stream(64);
    stream.write(&table, 0, range(0, 4), 0);
    table.commit();
    for (std::int32_t p = 4; p < 6; ++p) {
      stream.write(&table, 0, {p}, p);
      table.commit();
    }
    EXPECT_EQ(stream.copied_positions(table), (std::set<std::int32_t>{3, 4, 5}));
    // The one at position 6 sees cells 0..6; the other, at position 5, sees cells 0..4 and itself,
    // in cell 40.
    std::vector<std::int64_t> rows{6, 40};
    std::vector<std::int32_t> positions{6, 5};
    stream.positions[6] = 6;
    stream.positions[40] = 5;
    std::vector<std::uint16_t> mask(2 * 64, Visibility::kHidden);
    const std::size_t ahead = ahead_first ? 0 : 64, behind = 64 - ahead;
    for (int cell = 0; cell <= 6; ++cell) mask[ahead + cell] = kSeen;
    for (int cell : {0, 1, 2, 3, 4, 40}) mask[behind + cell] = kSeen;
    if (!ahead_first) {
      std::reverse(rows.begin(), rows.end());
      std::reverse(positions.begin(), positions.end());
    }
    table.begin(rows, positions, stream.positions, {mask.data(), 64, 0, 64, 2, 0, 64});
    table.commit();
    for (const std::int64_t cell : {3, 4, 5, 6, 40})
      EXPECT_GE(table.slot(cell), 0) << "cell " << cell << (ahead_first ? "" : ", behind first");
  }
}

// A sequence that runs ahead alone ends the copies it leaves behind, also of cells that a copied
// sequence shares: nothing tells that there is one until it comes (docs/adr/0002). What it writes
// then has its copies, and so has the first one still.
TEST(CopyTable, ASequenceThatRunsAheadEndsSharedCopies) {
  const Window window{1, 3};
  CopyTable table(64, 8, window);
  Stream stream(64);
  stream.write(&table, 0, range(0, 10), 0);
  table.commit();
  EXPECT_EQ(stream.copied_positions(table), (std::set<std::int32_t>{0, 7, 8, 9}));
  for (std::int32_t p = 10; p < 20; ++p) {
    stream.write(&table, 0, {p}, p);
    table.commit();
  }
  EXPECT_EQ(stream.copied_positions(table), (std::set<std::int32_t>{0, 17, 18, 19}));
  for (std::int32_t p = 10; p < 14; ++p) {
    // Cells 0..9 belong to both; those of the first sequence alone are hidden from the other.
    for (std::int64_t cell = 0; cell < 10; ++cell) stream.sequence[cell] = 1;
    stream.write(&table, 1, {30 + p}, p);
    table.commit();
  }
  EXPECT_EQ(stream.copied_positions(table, 1), (std::set<std::int32_t>{0, 11, 12, 13}));
  EXPECT_EQ(stream.copied_positions(table, 0), (std::set<std::int32_t>{17, 18, 19}));
}

}  // namespace
}  // namespace oscar::ggml_plugin

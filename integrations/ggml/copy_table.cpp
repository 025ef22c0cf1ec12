#include "copy_table.h"

#include <algorithm>
#include <numeric>

namespace oscar::ggml_plugin {
namespace {

constexpr std::int64_t kFree = -1;

}  // namespace

// From which position a cell was seen last in a ubatch: what later queries need of it follows.
class CopyTable::LastSeen {
 public:
  LastSeen(std::span<const std::int64_t> rows, std::span<const std::int32_t> positions,
           const Visibility& visibility)
      : positions_(positions), visibility_(visibility) {
    const auto num_tokens = std::ssize(rows);
    for (std::int64_t begin = 0; begin < num_tokens; begin += visibility.tokens_per_stream) {
      const std::int64_t end = std::min(num_tokens, begin + visibility.tokens_per_stream);
      std::vector<std::int64_t>& last = by_stream_.emplace_back();
      // A sequence's tokens come in order of position, and the next one of it sees a token. In the
      // usual ubatch that is the very next.
      for (std::int64_t token = begin; token < end; ++token) {
        std::int64_t later = token + 1;
        while (later < end && !visibility.sees(later, rows[token])) ++later;
        if (later == end) last.push_back(token);
      }
    }
  }

  // −1 when no token sees `row`. Of sequences that share the cell, the one that is furthest behind
  // needs it longest: the lowest position among the last tokens of sequences.
  std::int32_t position(std::int64_t row) const {
    const std::int64_t stream = row / visibility_.kv_size - visibility_.first_stream;
    if (stream < 0 || stream >= std::ssize(by_stream_)) return -1;
    std::int32_t nearest = -1;
    for (const std::int64_t token : by_stream_[stream]) {
      if (!visibility_.sees(token, row)) continue;
      if (nearest < 0 || positions_[token] < nearest) nearest = positions_[token];
    }
    if (nearest >= 0) return nearest;
    // A sliding window may have passed it within the ubatch.
    const std::int64_t begin = stream * visibility_.tokens_per_stream;
    for (std::int64_t token = begin + visibility_.tokens_per_stream - 1; token >= begin; --token) {
      if (visibility_.sees(token, row)) return positions_[token];
    }
    return -1;
  }

 private:
  std::span<const std::int32_t> positions_;
  const Visibility& visibility_;
  std::vector<std::vector<std::int64_t>> by_stream_;  // the last token of each sequence
};

CopyTable::CopyTable(std::int64_t num_rows, std::int64_t capacity, Window window)
    : window_(window), slots_(num_rows, -1), cells_(capacity, kFree), last_use_(capacity, 0) {
  clear();
}

void CopyTable::clear() {
  std::fill(slots_.begin(), slots_.end(), -1);
  std::fill(cells_.begin(), cells_.end(), kFree);
  free_.resize(cells_.size());
  std::iota(free_.rbegin(), free_.rend(), 0);
  num_used_ = 0;
  moves_.clear();
  move_rows_.clear();
  ending_.clear();
}

bool CopyTable::needed(std::int32_t position, std::int32_t last_position) const {
  return position < window_.sink_tokens || last_position - position < window_.recent_tokens;
}

void CopyTable::release(std::int32_t slot) {
  if (cells_[slot] == kFree) return;
  slots_[cells_[slot]] = -1;
  cells_[slot] = kFree;
  free_.push_back(slot);
  --num_used_;
}

void CopyTable::drop(std::int64_t row) {
  if (slots_[row] >= 0) release(slots_[row]);
}

// Old copies that a query saw for the last time end with this ubatch; those that it still needs are
// marked as used.
void CopyTable::end_old_copies(const LastSeen& last_seen,
                               std::span<const std::int32_t> cell_positions) {
  for (std::int32_t slot = 0; slot < std::ssize(cells_); ++slot) {
    if (cells_[slot] == kFree) continue;
    const std::int32_t last = last_seen.position(cells_[slot]);
    if (last < 0) continue;
    last_use_[slot] = now_;
    if (!needed(cell_positions[cells_[slot]], last)) ending_.push_back(slot);
  }
}

// Tokens of the ubatch that later queries need exactly; sinks first, then the latest.
std::vector<std::int64_t> CopyTable::tokens_to_keep(std::span<const std::int64_t> rows,
                                                    std::span<const std::int32_t> positions,
                                                    const LastSeen& last_seen) const {
  struct Kept {
    std::int64_t token;
    std::int32_t age;  // −1: a sink
  };
  std::vector<Kept> kept;
  for (std::int64_t token = 0; token < std::ssize(rows); ++token) {
    const std::int32_t last = std::max(positions[token], last_seen.position(rows[token]));
    if (!needed(positions[token], last)) continue;
    kept.push_back({token, positions[token] < window_.sink_tokens ? -1 : last - positions[token]});
  }
  std::stable_sort(kept.begin(), kept.end(),
                   [](const Kept& a, const Kept& b) { return a.age < b.age; });
  std::vector<std::int64_t> tokens;
  for (const Kept& k : kept) tokens.push_back(k.token);
  return tokens;
}

const std::vector<CopyTable::Move>& CopyTable::begin(std::span<const std::int64_t> rows,
                                                     std::span<const std::int32_t> positions,
                                                     std::span<const std::int32_t> cell_positions,
                                                     const Visibility& visibility) {
  ++now_;
  moves_.clear();
  move_rows_.clear();
  ending_.clear();
  if (cells_.empty()) return moves_;
  for (const std::int64_t row : rows) drop(row);
  const LastSeen last_seen(rows, positions, visibility);
  end_old_copies(last_seen, cell_positions);

  // Free slots first, then those whose copy ends, then copies that no query of this ubatch sees,
  // the longest unused first.
  std::vector<std::int32_t> unseen;
  for (std::int32_t slot = 0; slot < std::ssize(cells_); ++slot) {
    if (cells_[slot] != kFree && last_use_[slot] != now_) unseen.push_back(slot);
  }
  std::sort(unseen.begin(), unseen.end(), [this](std::int32_t a, std::int32_t b) {
    return last_use_[a] != last_use_[b] ? last_use_[a] < last_use_[b] : a < b;
  });
  std::size_t next_ending = 0, next_unseen = 0;
  for (const std::int64_t token : tokens_to_keep(rows, positions, last_seen)) {
    std::int32_t slot;
    if (!free_.empty()) {
      slot = free_.back();
      free_.pop_back();
    } else if (next_ending < ending_.size()) {
      slot = ending_[next_ending++];
    } else if (next_unseen < unseen.size()) {
      slot = unseen[next_unseen++];
      release(slot);
      free_.pop_back();
    } else {
      break;
    }
    moves_.push_back({token, slot});
    move_rows_.push_back(rows[token]);
  }
  return moves_;
}

void CopyTable::commit() {
  std::vector<bool> taken(cells_.size(), false);
  for (const Move& move : moves_) taken[move.slot] = true;
  for (const std::int32_t slot : ending_) {
    if (cells_[slot] == kFree) continue;
    release(slot);
    if (taken[slot]) free_.pop_back();
  }
  for (std::size_t i = 0; i < moves_.size(); ++i) {
    cells_[moves_[i].slot] = move_rows_[i];
    slots_[move_rows_[i]] = moves_[i].slot;
    last_use_[moves_[i].slot] = now_;
    ++num_used_;
  }
  moves_.clear();
  move_rows_.clear();
  ending_.clear();
}

void CopyTable::abandon() {
  for (const std::int32_t slot : ending_) release(slot);
  for (const Move& move : moves_) {
    const bool ended = std::find(ending_.begin(), ending_.end(), move.slot) != ending_.end();
    if (!ended) free_.push_back(move.slot);
  }
  moves_.clear();
  move_rows_.clear();
  ending_.clear();
}

std::int32_t CopyTable::assign(std::int64_t row) {
  if (slots_[row] >= 0) return slots_[row];
  if (cells_.empty()) return -1;
  if (free_.empty()) {
    release(static_cast<std::int32_t>(std::min_element(last_use_.begin(), last_use_.end()) -
                                      last_use_.begin()));
  }
  const std::int32_t slot = free_.back();
  free_.pop_back();
  cells_[slot] = row;
  slots_[row] = slot;
  last_use_[slot] = ++now_;
  ++num_used_;
  return slot;
}

}  // namespace oscar::ggml_plugin

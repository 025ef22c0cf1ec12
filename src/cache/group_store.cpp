#include "cache/group_store.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "base/parallel.h"

namespace oscar::cache {
namespace {

// Groups in the making: one a sequence, one more while it is handed from token to token, and room
// for the beginnings that truncations leave behind.
std::int64_t num_waiting(int group_tokens, std::int64_t num_sequences) {
  return group_tokens == 1 ? 0 : 2 * num_sequences + 2;
}

// Groups beyond those that full ones need: truncated sequences leave partly used ones.
std::int64_t num_groups(int group_tokens, std::int64_t num_cells, std::int64_t num_sequences) {
  if (group_tokens == 1) return num_cells;
  const std::int64_t full = (num_cells + group_tokens - 1) / group_tokens;
  return full + full / 8 + 4 * num_sequences + 4;
}

std::int64_t waiting_offset(const methods::RowCoder& coder, std::int64_t groups) {
  constexpr std::int64_t kAlignment = 64;
  return (groups * coder.group_bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

constexpr std::int64_t kTokensPerTask = 32;

}  // namespace

std::int64_t store_bytes(const methods::RowCoder& coder, std::int64_t num_cells,
                         std::int64_t num_sequences) {
  const std::int64_t waiting = num_waiting(coder.group_tokens(), num_sequences);
  return waiting_offset(coder, num_groups(coder.group_tokens(), num_cells, num_sequences)) +
         waiting * coder.group_tokens() * coder.row_values() * std::int64_t{sizeof(bf16_t)};
}

GroupStore::GroupStore(const methods::RowCoder& coder, std::int64_t num_cells,
                       std::int64_t num_sequences, std::uint8_t* memory)
    : group_tokens_(coder.group_tokens()),
      group_bytes_(coder.group_bytes()),
      row_values_(coder.row_values()),
      num_groups_(num_groups(coder.group_tokens(), num_cells, num_sequences)),
      memory_(memory),
      refs_(static_cast<std::size_t>(num_cells), -1),
      live_(static_cast<std::size_t>(num_groups_), 0),
      used_(static_cast<std::size_t>(num_groups_), 0),
      waiting_(static_cast<std::size_t>(num_waiting(coder.group_tokens(), num_sequences))) {
  clear();
}

void GroupStore::clear() {
  std::fill(refs_.begin(), refs_.end(), -1);
  std::fill(live_.begin(), live_.end(), 0);
  std::fill(used_.begin(), used_.end(), 0);
  free_.clear();
  if (group_tokens_ > 1) {
    for (std::int64_t id = num_groups_; id-- > 0;) free_.push_back(id);
  }
  for (Waiting& waiting : waiting_) waiting = Waiting{};
}

bf16_t* GroupStore::waiting_row(std::size_t index, std::size_t token) const {
  const std::int64_t aligned = (num_groups_ * group_bytes_ + 63) / 64 * 64;
  auto* const rows = reinterpret_cast<bf16_t*>(memory_ + aligned);
  return rows +
         (static_cast<std::int64_t>(index) * group_tokens_ + static_cast<std::int64_t>(token)) *
             row_values_;
}

void GroupStore::drop(std::int64_t cell) {
  const std::int64_t ref = refs_[cell];
  if (ref < 0) return;
  refs_[cell] = -1;
  if (!is_waiting(ref)) {
    const std::int64_t id = ref / group_tokens_;
    if (--live_[id] > 0) return;
    used_[id] = 0;
    if (group_tokens_ > 1) free_.push_back(id);
    return;
  }
  // The last tokens go for good, so that others may take their places.
  Waiting& waiting = waiting_[waiting_index(ref)];
  waiting.cells[ref % group_tokens_] = -1;
  while (!waiting.cells.empty() && waiting.cells.back() < 0) {
    waiting.cells.pop_back();
    waiting.positions.pop_back();
  }
  if (waiting.cells.empty()) waiting = Waiting{};
}

std::int64_t GroupStore::take_group() {
  if (free_.empty()) {
    throw Error(ErrorCode::kUnsupported,
                "all " + std::to_string(num_groups_) + " groups of " +
                    std::to_string(group_tokens_) +
                    " tokens are in use, some in part: truncated sequences have left too many "
                    "beginnings behind; clear the cache, or use a method that codes single tokens");
  }
  const std::int64_t id = free_.back();
  free_.pop_back();
  return id;
}

// Codes the group, as long as it is.
void GroupStore::finish(const SideCoder& side, std::size_t index) {
  Waiting& waiting = waiting_[index];
  const std::int64_t id = take_group();
  const auto count = static_cast<int>(waiting.cells.size());
  std::vector<float> raw(static_cast<std::size_t>(count * row_values_)), rotated(raw.size());
  const bf16_t* const rows = waiting_row(index, 0);
  std::transform(rows, rows + raw.size(), raw.begin(), bf16_to_float);
  side.rotate(raw.data(), count, rotated.data());
  used_[id] = static_cast<std::int32_t>(
      side.coder->encode(rotated.data(), waiting.positions.data(), count, group(id)));
  for (int token = 0; token < count; ++token) {
    const std::int64_t cell = waiting.cells[static_cast<std::size_t>(token)];
    if (cell < 0) continue;
    refs_[cell] = id * group_tokens_ + token;
    ++live_[id];
  }
  waiting = Waiting{};
}

std::size_t GroupStore::start_group(const SideCoder& side) {
  std::size_t oldest = 0;
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    if (waiting_[i].last_use < waiting_[oldest].last_use) oldest = i;
  }
  if (waiting_[oldest].last_use != 0) finish(side, oldest);
  waiting_[oldest].serial = ++clock_;
  return oldest;
}

void GroupStore::append(const SideCoder& side, std::size_t index, std::int64_t cell,
                        std::int32_t position, const bf16_t* row) {
  Waiting& waiting = waiting_[index];
  const std::size_t token = waiting.cells.size();
  std::memcpy(waiting_row(index, token), row, static_cast<std::size_t>(row_bytes()));
  waiting.cells.push_back(cell);
  waiting.positions.push_back(position);
  waiting.last_use = ++clock_;
  refs_[cell] = (num_groups_ + static_cast<std::int64_t>(index)) * group_tokens_ +
                static_cast<std::int64_t>(token);
  if ((position + 1) % group_tokens_ == 0) finish(side, index);
}

bool GroupStore::write(const SideCoder& side, const Rows& rows, std::span<const std::int64_t> cells,
                       std::span<const std::int64_t> predecessors, const std::int32_t* positions,
                       int num_threads) {
  for (const std::int64_t cell : cells) drop(cell);
  const int heads = side.coder->num_kv_heads(), dim = side.coder->head_dim();
  const auto load = [&](std::int64_t token, bf16_t* exact) {
    bool finite = true;
    for (int head = 0; head < heads; ++head) {
      finite &= store_exact_row(rows.data + token * rows.token_stride + head * rows.head_stride,
                                dim, exact + std::int64_t{head} * dim);
    }
    if (!finite) std::fill_n(exact, row_values_, bf16_t{0});
    return finite;
  };
  if (group_tokens_ == 1) {
    std::atomic<bool> all_finite{true};
    const std::int64_t num_tasks = (rows.num_tokens + kTokensPerTask - 1) / kTokensPerTask;
    const auto body = [&](std::int64_t task, int) {
      std::vector<float> raw(static_cast<std::size_t>(row_values_)), rotated(raw.size());
      std::vector<bf16_t> exact(raw.size());
      const std::int64_t end = std::min(rows.num_tokens, (task + 1) * kTokensPerTask);
      for (std::int64_t token = task * kTokensPerTask; token < end; ++token) {
        if (!load(token, exact.data())) {
          all_finite = false;
          std::fill(raw.begin(), raw.end(), 0.0f);
        } else {
          for (int head = 0; head < heads; ++head) {
            std::copy_n(rows.data + token * rows.token_stride + head * rows.head_stride, dim,
                        raw.begin() + std::int64_t{head} * dim);
          }
        }
        side.rotate(raw.data(), 1, rotated.data());
        const std::int64_t cell = cells[token];
        used_[cell] = static_cast<std::int32_t>(
            side.coder->encode(rotated.data(), positions + token, 1, group(cell)));
        refs_[cell] = cell;
        live_[cell] = 1;
      }
    };
    parallel_for(num_threads, num_tasks, std::cref(body));
    return all_finite;
  }
  bool all_finite = true;
  std::vector<bf16_t> exact(static_cast<std::size_t>(row_values_));
  for (std::int64_t token = 0; token < rows.num_tokens; ++token) {
    all_finite &= load(token, exact.data());
    const std::int64_t before = predecessors[token];
    const std::int64_t ref = before < 0 ? -1 : refs_[before];
    std::size_t index = waiting_.size();
    if (ref >= 0 && is_waiting(ref)) {
      const std::size_t candidate = waiting_index(ref);
      const Waiting& waiting = waiting_[candidate];
      if (std::ssize(waiting.cells) < group_tokens_ && waiting.cells.back() == before &&
          waiting.positions.back() + 1 == positions[token]) {
        index = candidate;
      }
    }
    if (index == waiting_.size()) index = start_group(side);
    append(side, index, cells[token], positions[token], exact.data());
  }
  return all_finite;
}

void GroupStore::read(const SideCoder& side, std::int64_t first, std::int64_t count,
                      const std::int32_t* positions, float* rows) const {
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t ref = refs_[first + i];
    float* const out = rows + i * row_values_;
    if (ref < 0) {
      std::fill_n(out, row_values_, 0.0f);
      ++i;
      continue;
    }
    // Cells that follow each other in one group are decoded together.
    std::int64_t run = 1;
    while (i + run < count && ref % group_tokens_ + run < group_tokens_ &&
           refs_[first + i + run] == ref + run) {
      ++run;
    }
    if (is_waiting(ref)) {
      const bf16_t* const from =
          waiting_row(waiting_index(ref), static_cast<std::size_t>(ref % group_tokens_));
      std::vector<float> raw(static_cast<std::size_t>(run * row_values_));
      std::transform(from, from + raw.size(), raw.begin(), bf16_to_float);
      side.rotate(raw.data(), run, out);
    } else {
      side.coder->decode(group(ref / group_tokens_), positions + i,
                         static_cast<int>(ref % group_tokens_), static_cast<int>(run), out);
    }
    i += run;
  }
}

void GroupStore::copy(const SideCoder& side, std::int64_t from, std::int64_t to) {
  if (from == to) return;
  drop(to);
  const std::int64_t ref = refs_[from];
  if (ref < 0) return;
  if (group_tokens_ == 1) {
    std::memcpy(group(to), group(from), static_cast<std::size_t>(group_bytes_));
    used_[to] = used_[from];
    live_[to] = 1;
    refs_[to] = to;
    return;
  }
  if (!is_waiting(ref)) {
    refs_[to] = ref;
    ++live_[ref / group_tokens_];
    return;
  }
  const auto token = static_cast<std::size_t>(ref % group_tokens_);
  const std::size_t source = waiting_index(ref);
  const std::uint64_t serial = waiting_[source].serial;
  const std::int32_t position = waiting_[source].positions[token];
  const std::vector<bf16_t> row(waiting_row(source, token),
                                waiting_row(source, token) + row_values_);
  // The copy in the making, if the token before this one is its last.
  std::size_t index = 0;
  while (index < waiting_.size() &&
         !(waiting_[index].last_use != 0 && waiting_[index].copied_from == serial &&
           std::ssize(waiting_[index].cells) < group_tokens_ &&
           waiting_[index].positions.back() + 1 == position)) {
    ++index;
  }
  if (index == waiting_.size()) {
    index = start_group(side);
    waiting_[index].copied_from = serial;
  }
  append(side, index, to, position, row.data());
}

std::uint64_t GroupStore::used_bytes() const {
  std::uint64_t sum = 0;
  for (const std::int32_t bytes : used_) sum += static_cast<std::uint64_t>(bytes);
  for (const Waiting& waiting : waiting_) {
    sum += waiting.cells.size() * static_cast<std::uint64_t>(row_bytes());
  }
  return sum;
}

GroupStore::Place GroupStore::coded_place(std::int64_t cell) const {
  const std::int64_t ref = refs_[cell];
  if (ref < 0 || is_waiting(ref)) return {{}, -1};
  const std::int64_t id = ref / group_tokens_;
  return {{group(id), static_cast<std::size_t>(used_[id])}, static_cast<int>(ref % group_tokens_)};
}

}  // namespace oscar::cache

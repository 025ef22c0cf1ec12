#include "attention/page_mask.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/f16.h"

namespace oscar::attention {
namespace {

constexpr std::uint16_t kF16MinusInfinity = 0xfc00;

// What all queries share: the page's cells.
struct PageCells {
  int count = 0;  // cells of the page that exist
  std::uint64_t written = 0;
  std::uint64_t copy_sink = 0;                      // has a copy and is a sink
  std::uint64_t copy_any = 0;                       // has a copy
  std::int32_t min_position = 0, max_position = 0;  // over written cells
  std::int32_t positions[kPageSize];
};

// Positions in any order, with cells that were never written.
void read_positions(const std::int32_t* stored, PageCells* cells) {
  std::copy_n(stored, cells->count, cells->positions);
  std::int32_t least = std::numeric_limits<std::int32_t>::max(), largest = -1;
  for (int t = 0; t < cells->count; ++t) {
    const std::int32_t position = cells->positions[t];
    largest = std::max(largest, position);
    if (position < 0) {
      cells->written &= ~(std::uint64_t{1} << t);
    } else {
      least = std::min(least, position);
    }
  }
  cells->min_position = least;
  cells->max_position = largest;
}

PageCells page_cells(const Params& params, std::int64_t num_kv, std::int64_t page,
                     bool use_copies) {
  const std::int64_t first = page * kPageSize;
  const KvView& kv = params.kv;
  PageCells cells;
  cells.count = static_cast<int>(std::min<std::int64_t>(kPageSize, num_kv - first));
  cells.written = low_bits(cells.count);
  const std::int32_t* const stored =
      kv.cell_positions != nullptr ? kv.cell_positions + first : nullptr;
  // A page of positions in order, as most are, needs no search.
  const std::int32_t start = stored != nullptr ? stored[0] : static_cast<std::int32_t>(first);
  const std::int32_t last = start + (cells.count - 1);
  for (int t = 0; t < static_cast<int>(kPageSize); ++t) cells.positions[t] = start + t;
  std::int32_t differences = 0;
  if (stored != nullptr) {
    for (int t = 0; t < cells.count; ++t) differences |= stored[t] ^ cells.positions[t];
  }
  cells.min_position = start;
  cells.max_position = last;
  if (differences != 0 || start < 0) read_positions(stored, &cells);
  if (!use_copies) return cells;
  std::int32_t no_copy = -1;
  for (int t = 0; t < cells.count; ++t) no_copy &= kv.copy_slots[first + t];
  if (no_copy == -1) return cells;
  for (int t = 0; t < cells.count; ++t) {
    if (kv.copy_slots[first + t] < 0 || cells.positions[t] < 0) continue;
    cells.copy_any |= std::uint64_t{1} << t;
    if (cells.positions[t] < params.sink_tokens) cells.copy_sink |= std::uint64_t{1} << t;
  }
  return cells;
}

// Bits of the cells whose distance from the query, query_position − position, lies in [least,
// least_not).
std::uint64_t cells_at_distance(const PageCells& cells, std::int64_t query_position,
                                std::int64_t least, std::int64_t least_not) {
  if (query_position - cells.max_position >= least &&
      query_position - cells.min_position < least_not)
    return cells.written;
  if (query_position - cells.min_position < least ||
      query_position - cells.max_position >= least_not)
    return 0;
  std::uint64_t bits = 0;
  for (int t = 0; t < cells.count; ++t) {
    const std::int64_t distance = query_position - cells.positions[t];
    bits |= std::uint64_t{distance >= least && distance < least_not} << t;
  }
  return bits & cells.written;
}

// Bits of the cells that a mask row lets through; sets has_bias where it adds something to them.
std::uint64_t mask_bits(const std::uint16_t* row, int count, bool* has_bias) {
  constexpr std::uint64_t kAllHidden = 0xfc00fc00fc00fc00u;
  std::uint64_t any = 0, unlike = 0;
  int t = 0;
  for (; t + 4 <= count; t += 4) {
    std::uint64_t four;
    std::memcpy(&four, row + t, sizeof four);
    any |= four;
    unlike |= four ^ kAllHidden;
  }
  for (; t < count; ++t) {
    any |= row[t];
    unlike |= std::uint64_t{row[t]} ^ kF16MinusInfinity;
  }
  if (any == 0) return low_bits(count);
  if (unlike == 0) return 0;
  std::uint64_t bits = 0;
  for (t = 0; t < count; ++t) {
    bits |= std::uint64_t{row[t] != kF16MinusInfinity} << t;
    *has_bias |= row[t] != kF16MinusInfinity && (row[t] & 0x7fffu) != 0;
  }
  return bits;
}

}  // namespace

PageMask classify_page(const Params& params, std::int64_t num_kv, std::int64_t page,
                       std::int64_t first_query, std::int64_t num_queries, bool use_copies,
                       std::uint64_t* visible, std::uint64_t* copied) noexcept {
  constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();
  const PageCells cells = page_cells(params, num_kv, page, use_copies);
  PageMask mask;
  std::uint64_t common = ~std::uint64_t{0};
  for (std::int64_t i = 0; i < num_queries; ++i) {
    const std::int64_t query = first_query + i;
    std::uint64_t bits = cells.written, copy = cells.copy_sink;
    if (bits != 0 && params.query_positions != nullptr) {
      const std::int64_t position = params.query_positions[query];
      if (params.causal || params.sliding_window > 0) {
        bits = cells_at_distance(cells, position, params.causal ? 0 : -kFar / 2,
                                 params.sliding_window > 0 ? params.sliding_window : kFar / 2);
      }
      if (cells.copy_any != cells.copy_sink && params.recent_tokens > 0) {
        copy |=
            cells.copy_any & cells_at_distance(cells, position, -kFar / 2, params.recent_tokens);
      }
    }
    if (bits != 0 && params.mask_f16 != nullptr) {
      bits &= mask_bits(params.mask_f16 + query * params.mask_stride + page * kPageSize,
                        cells.count, &mask.has_bias);
    }
    copy &= bits;
    visible[i] = bits;
    copied[i] = copy;
    common &= bits;
    mask.seen |= bits;
    mask.seen_copies |= copy;
    mask.seen_codes |= bits & ~copy;
  }
  mask.num_cells = 64 - std::countl_zero(mask.seen);
  mask.uniform = (common & low_bits(mask.num_cells)) == low_bits(mask.num_cells);
  return mask;
}

float float_from_f16(std::uint16_t bits) noexcept { return f16_to_float(bits); }

}  // namespace oscar::attention

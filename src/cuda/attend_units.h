// How a sequence's tokens are cut into units of work, and which tokens a query row takes from codes
// and which from exact copies. Pure arithmetic, the same on host and device.
#pragma once

#include <cstdint>

#include "cuda/device_layout.h"

namespace oscar::cuda {

inline constexpr int kExactUnit = 8;  // tokens of one unit of exact rows

// What the cut depends on besides the length.
struct WindowRules {
  std::int32_t num_queries, sink_tokens, recent_tokens, sliding_window;
};

// Tokens [begin, end).
struct TokenRange {
  std::int32_t begin, end;
  OSCAR_HD bool contains(std::int32_t token) const { return token >= begin && token < end; }
};

OSCAR_HD std::int32_t larger(std::int32_t a, std::int32_t b) { return a > b ? a : b; }
OSCAR_HD std::int32_t smaller(std::int32_t a, std::int32_t b) { return a < b ? a : b; }

// First token that the query at `position` may see.
OSCAR_HD std::int32_t window_begin(const WindowRules& rules, std::int32_t position) {
  return rules.sliding_window > 0 ? larger(0, position - rules.sliding_window + 1) : 0;
}

// Tokens that the query at `position` reads as codes.
OSCAR_HD TokenRange coded_tokens(const WindowRules& rules, bool has_copies, std::int32_t position) {
  const std::int32_t first = window_begin(rules, position);
  if (!has_copies) return {first, position + 1};
  return {larger(first, rules.sink_tokens), position + 1 - larger(0, rules.recent_tokens)};
}

// Tokens that it reads from exact copies: sinks and recent ones.
OSCAR_HD bool reads_exact(const WindowRules& rules, std::int32_t position, std::int32_t token) {
  if (token > position || token < window_begin(rules, position)) return false;
  return token < rules.sink_tokens || token > position - rules.recent_tokens;
}

// Units of a sequence, in order: coded pages, sinks by eight, recent tokens by eight. Every token
// that some query of the last num_queries reads is in one, and a token in both kinds is told apart
// by the rows' masks.
struct SequenceUnits {
  std::int32_t length;      // tokens
  std::int32_t first_page;  // of the coded pages
  std::int32_t num_coded, num_sink, num_recent;
  std::int32_t sink_begin, recent_begin;

  OSCAR_HD std::int32_t count() const { return num_coded + num_sink + num_recent; }
  // Tokens [begin, end) of an exact unit, all of its kind and in the sequence; unit counts from
  // num_coded.
  OSCAR_HD TokenRange exact_tokens(const WindowRules& rules, std::int32_t unit) const {
    const std::int32_t begin = exact_begin(unit);
    const std::int32_t limit = unit < num_sink ? smaller(rules.sink_tokens, length) : length;
    return {begin, smaller(begin + kExactUnit, limit)};
  }
  // First token of an exact unit.
  OSCAR_HD std::int32_t exact_begin(std::int32_t unit) const {
    return unit < num_sink ? sink_begin + unit * kExactUnit
                           : recent_begin + (unit - num_sink) * kExactUnit;
  }
};

OSCAR_HD SequenceUnits sequence_units(const WindowRules& rules, bool has_copies,
                                      std::int32_t length) {
  SequenceUnits units{length, 0, 0, 0, 0, 0, 0};
  if (length <= 0) return units;
  const std::int32_t last = length - 1, first = larger(0, length - rules.num_queries);
  const std::int32_t visible = window_begin(rules, first);
  const TokenRange coded{coded_tokens(rules, has_copies, first).begin,
                         coded_tokens(rules, has_copies, last).end};
  if (coded.begin < coded.end) {
    units.first_page = coded.begin / kPageTokens;
    units.num_coded = (coded.end - 1) / kPageTokens + 1 - units.first_page;
  }
  if (!has_copies) return units;
  const std::int32_t sink_end = smaller(rules.sink_tokens, length);
  units.sink_begin = visible;
  if (visible < sink_end) units.num_sink = (sink_end - visible + kExactUnit - 1) / kExactUnit;
  units.recent_begin = larger(larger(rules.sink_tokens, visible), first + 1 - rules.recent_tokens);
  if (rules.recent_tokens > 0 && units.recent_begin < length) {
    units.num_recent = (length - units.recent_begin + kExactUnit - 1) / kExactUnit;
  }
  return units;
}

}  // namespace oscar::cuda

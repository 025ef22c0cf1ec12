// Which cells of a page each query of a block attends, and how: hidden, by the codes, or by the
// exact copy.
#pragma once

#include <cstdint>

#include "attention/attention.h"

namespace oscar::attention {

struct PageMask {
  int num_cells =
      0;  // cells up to the last one that any query sees; the rest of the page is not touched
  std::uint64_t seen = 0;         // bit t: some query of the block attends cell t ...
  std::uint64_t seen_codes = 0;   // ... by its codes
  std::uint64_t seen_copies = 0;  // ... by its copy
  bool uniform = false;           // every query attends every one of the num_cells cells
  bool has_bias = false;          // the mask holds finite values other than 0
};

constexpr std::uint64_t low_bits(int count) {
  return count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

// visible, copied: [num_queries], filled for queries [first_query, first_query + num_queries).
PageMask classify_page(const Params& params, std::int64_t num_kv, std::int64_t page,
                       std::int64_t first_query, std::int64_t num_queries, bool use_copies,
                       std::uint64_t* visible, std::uint64_t* copied) noexcept;

float float_from_f16(std::uint16_t bits) noexcept;

}  // namespace oscar::attention

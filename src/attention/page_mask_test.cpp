#include "attention/page_mask.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace oscar::attention {
namespace {

TEST(PageMask, ReadsEveryF16) {
  EXPECT_EQ(float_from_f16(0x0000), 0.0f);
  EXPECT_TRUE(std::signbit(float_from_f16(0x8000)));
  EXPECT_EQ(float_from_f16(0x3c00), 1.0f);
  EXPECT_EQ(float_from_f16(0xc500), -5.0f);
  EXPECT_EQ(float_from_f16(0x7bff), 65504.0f);
  EXPECT_EQ(float_from_f16(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(float_from_f16(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(float_from_f16(0x7e00)));
  for (int bits = 0; bits < 0x7c00; ++bits) {
    const int exponent = bits >> 10, fraction = bits & 0x3ff;
    const double value =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25);
    ASSERT_EQ(float_from_f16(static_cast<std::uint16_t>(bits)), value) << bits;
    ASSERT_EQ(float_from_f16(static_cast<std::uint16_t>(bits | 0x8000)), -value) << bits;
  }
}

// One page of positions 0 … 63, cell 7 never written; every rule alone, against the sentence that
// defines it.
TEST(PageMask, EveryRuleAlone) {
  std::array<std::int32_t, kPageSize> positions, slots;
  std::array<std::uint16_t, kPageSize> mask_row{};
  for (int t = 0; t < kPageSize; ++t) {
    positions[t] = t == 7 ? -1 : t;
    slots[t] = t % 3 == 0 ? t : -1;
  }
  mask_row[5] = mask_row[50] = 0xfc00;
  for (const std::int32_t query : {0, 6, 30, 63, 100}) {
    for (int rules = 0; rules < 32; ++rules) {
      Params params;
      params.query_positions = &query;
      params.kv.cell_positions = positions.data();
      params.kv.copy_slots = slots.data();
      params.causal = (rules & 1) != 0;
      params.sliding_window = (rules & 2) != 0 ? 20 : 0;
      params.mask_f16 = (rules & 4) != 0 ? mask_row.data() : nullptr;
      params.mask_stride = kPageSize;
      params.sink_tokens = (rules & 8) != 0 ? 10 : 0;
      params.recent_tokens = (rules & 16) != 0 ? 15 : 0;
      std::uint64_t visible, copied;
      const PageMask mask = classify_page(params, kPageSize, 0, 0, 1, true, &visible, &copied);
      std::uint64_t right_visible = 0, right_copied = 0;
      for (int t = 0; t < kPageSize; ++t) {
        if (t == 7 || (params.causal && t > query) ||
            (params.sliding_window > 0 && query - t >= 20) ||
            (params.mask_f16 != nullptr && mask_row[t] != 0))
          continue;
        right_visible |= std::uint64_t{1} << t;
        if (slots[t] >= 0 && (t < params.sink_tokens ||
                              (params.recent_tokens > 0 && query - t < params.recent_tokens)))
          right_copied |= std::uint64_t{1} << t;
      }
      EXPECT_EQ(visible, right_visible) << "query " << query << ", rules " << rules;
      EXPECT_EQ(copied, right_copied) << "query " << query << ", rules " << rules;
      EXPECT_EQ(mask.seen, right_visible);
      EXPECT_EQ(mask.seen_copies, right_copied);
      EXPECT_EQ(mask.seen_codes, right_visible & ~right_copied);
      EXPECT_FALSE(mask.has_bias);
      EXPECT_EQ(mask.uniform, right_visible == low_bits(mask.num_cells));
    }
  }
}

TEST(PageMask, LastPageEndsWithTheCells) {
  Params params;
  std::uint64_t visible, copied;
  for (const std::int64_t num_kv : {1, 63, 64}) {
    const PageMask mask = classify_page(params, 128 + num_kv, 2, 0, 1, false, &visible, &copied);
    EXPECT_EQ(mask.num_cells, num_kv);
    EXPECT_EQ(visible, low_bits(static_cast<int>(num_kv)));
    EXPECT_TRUE(mask.uniform);
  }
}

}  // namespace
}  // namespace oscar::attention

// The integer path: exact sums of rounded rows and weights, the same bits in every kernel set.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/kernels_test_support.h"
#include "reference/codec.h"

namespace oscar::kernels {
namespace {

std::vector<PlaneLayout> layouts_for_integers(int head_dim) {
  std::vector<PlaneLayout> layouts;
  for (const PlaneLayout& layout : all_layouts(head_dim)) {
    if (layout.quant.scale_fit == ScaleFit::kPlain) layouts.push_back(layout);
  }
  return layouts;
}

// The channel of byte `index` of a quantized row.
int channel_of(const PlaneLayout& layout, int index) {
  const int codes_a_byte = layout.quant.bits == 4 ? 2 : 4;
  const int step = index / 4, byte = index % 4;
  return step / codes_a_byte * 4 * codes_a_byte + byte * codes_a_byte + step % codes_a_byte;
}

struct Queries {
  int num_rows;
  std::vector<std::int8_t> bytes;
  std::vector<float> scales, sums;

  // The code of a row in the order of channel_of.
  int code(int row, int index) const {
    const auto high = static_cast<std::size_t>(8 * (index / 4 * num_rows + row) + index % 4);
    return 256 * bytes[high] + bytes[high + 4];
  }

  Queries(const KernelSet& set, const std::vector<float>& q, int rows, const PlaneLayout& layout)
      : num_rows(rows),
        bytes(static_cast<std::size_t>(2 * num_rows * layout.head_dim)),
        scales(static_cast<std::size_t>(num_rows * layout.num_groups())),
        sums(scales.size()) {
    set.quantize_queries(
        {q.data(), num_rows, layout.head_dim, layout, bytes.data(), scales.data(), sums.data()});
  }
};

struct Page {
  std::vector<std::uint8_t> plane;
  std::vector<reference::Row> rows;

  Page(const PlaneLayout& layout, std::mt19937_64& random) : plane(make_plane(layout, 0)) {
    const std::vector<float> values =
        normal_values(static_cast<std::size_t>(kPageSize * layout.head_dim), random);
    EXPECT_TRUE(encode_tokens(scalar_set(), values, layout, 1.0f, plane.data()));
    for (int t = 0; t < kPageSize; ++t) {
      rows.push_back(reference::read_row(plane.data(), layout, t));
    }
  }
};

constexpr int kMaxRows = 16;

std::vector<const KernelSet*> sets_scalar_first() {
  std::vector<const KernelSet*> sets = runnable_sets();
  std::reverse(sets.begin(), sets.end());
  return sets;
}

TEST(QuantizeQueries, EveryValueWithinHalfAStep) {
  std::mt19937_64 random = seeded(81);
  for (const int head_dim : kHeadDims) {
    for (const PlaneLayout& layout : layouts_for_integers(head_dim)) {
      const std::vector<float> q =
          normal_values(static_cast<std::size_t>(kMaxRows * head_dim), random);
      const Queries scalar(scalar_set(), q, kMaxRows, layout);
      for (int r = 0; r < kMaxRows; ++r) {
        for (int group = 0; group < layout.num_groups(); ++group) {
          const int first = group * layout.quant.group_size;
          const auto metadata = static_cast<std::size_t>(r * layout.num_groups() + group);
          const double scale = scalar.scales[metadata];
          double largest = 0, sum = 0;
          for (int i = first; i < first + layout.quant.group_size; ++i) {
            const int channel = first + channel_of(layout, i - first);
            const double x = q[static_cast<std::size_t>(r * head_dim + channel)];
            const int code = scalar.code(r, i);
            // The reciprocal, the product and the scale are rounded.
            ASSERT_LE(std::abs(x - scale * code), scale * (0.5 + 32639 * 4 * kEps));
            largest = std::max(largest, std::abs(x));
            sum += code;
          }
          ASSERT_NEAR(scale, largest / 32639, largest / 32639 * 2 * kEps);
          ASSERT_EQ(scalar.sums[metadata], sum);
        }
      }
      for (const KernelSet* set : runnable_sets()) {
        const Queries queries(*set, q, kMaxRows, layout);
        ASSERT_EQ(queries.bytes, scalar.bytes) << set->name << " " << describe(layout);
        ASSERT_EQ(queries.scales, scalar.scales) << set->name << " " << describe(layout);
        ASSERT_EQ(queries.sums, scalar.sums) << set->name << " " << describe(layout);
      }
    }
  }
}

TEST(QuantizeQueries, NothingIsHiddenByRounding) {
  const PlaneLayout layout{64, {2, 32, Codebook::kSymmetric}};
  for (const KernelSet* set : runnable_sets()) {
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> q(64, 1.0f);
      q[40] = bad;
      const Queries queries(*set, q, 1, layout);
      EXPECT_EQ(queries.scales[0], 1.0f / 32639) << set->name;
      EXPECT_TRUE(std::isnan(queries.scales[1])) << set->name;
    }
    const Queries tiny(*set, std::vector<float>(64, 1e-38f), 1, layout);
    EXPECT_EQ(tiny.scales[0], 0.0f) << set->name;
    EXPECT_EQ(tiny.sums[0], 0.0f) << set->name;
    const Queries huge(*set, std::vector<float>(64, -3e38f), 1, layout);
    EXPECT_EQ(huge.sums[0], -32.0f * 32639) << set->name;
  }
}

TEST(QkInteger, SumsOfRoundedRowsAreExact) {
  std::mt19937_64 random = seeded(82);
  for (const int head_dim : kHeadDims) {
    for (const PlaneLayout& layout : layouts_for_integers(head_dim)) {
      const Page page(layout, random);
      std::vector<float> q = normal_values(static_cast<std::size_t>(kMaxRows * head_dim), random);
      // The largest sums that there can be: every byte ±127.
      for (int c = 0; c < 2 * head_dim; ++c) q[static_cast<std::size_t>(c)] = c < head_dim ? 1 : -1;
      for (int rows = 1; rows <= kMaxRows; ++rows) {
        const int tokens = rows % 2 == 0 ? kPageSize : 1 + (rows * 13) % 63;
        const int stride = tokens + 1;
        const Queries queries(scalar_set(), q, rows, layout);
        std::vector<float> of_scalar;
        for (const KernelSet* set : sets_scalar_first()) {
          std::vector<float> logits(static_cast<std::size_t>(rows * stride), -9.0f);
          set->qk_integer({queries.bytes.data(), queries.scales.data(), queries.sums.data(),
                           page.plane.data(), logits.data(), rows, tokens, stride, layout});
          if (of_scalar.empty()) of_scalar = logits;
          ASSERT_EQ(logits, of_scalar) << set->name << " " << describe(layout) << " rows " << rows;
        }
        for (int r = 0; r < rows; ++r) {
          for (int t = 0; t < tokens; ++t) {
            const reference::Row& row = page.rows[static_cast<std::size_t>(t)];
            double sum = 0, magnitude = 0;
            for (int group = 0; group < layout.num_groups(); ++group) {
              const auto g = static_cast<std::size_t>(group);
              const auto metadata = static_cast<std::size_t>(r * layout.num_groups() + group);
              const int first = group * layout.quant.group_size;
              double dot = 0;
              for (int i = first; i < first + layout.quant.group_size; ++i) {
                dot += double{1} * queries.code(r, i) *
                       row.codes[static_cast<std::size_t>(first + channel_of(layout, i - first))];
              }
              const double zero = row.zeros[g] * queries.sums[metadata];
              const double factor = double{queries.scales[metadata]} * row.scales[g];
              sum += factor * (dot - zero);
              magnitude += factor * (std::abs(dot) + std::abs(zero));
            }
            // Roundings of a group: Σ as a float, zero·Σ, the difference, both products, the sum.
            ASSERT_NEAR(of_scalar[static_cast<std::size_t>(r * stride + t)], sum,
                        (5 + layout.num_groups()) * kEps * magnitude)
                << describe(layout) << " rows " << rows;
          }
          ASSERT_EQ(of_scalar[static_cast<std::size_t>(r * stride + tokens)], -9.0f);
        }
      }
    }
  }
}

TEST(PvInteger, WeightsWithinHalfAStepAndSumsExact) {
  std::mt19937_64 random = seeded(83);
  for (const int head_dim : kHeadDims) {
    for (const PlaneLayout& layout : layouts_for_integers(head_dim)) {
      const Page page(layout, random);
      const int levels = (1 << layout.quant.level_bits()) - 1, stride = head_dim + 1;
      std::vector<float> p = normal_values(kMaxRows * (kPageSize + 1), random);
      for (float& weight : p) weight = std::exp(2 * weight - 8);
      // The largest sums that there can be, and a page that one token has to itself.
      for (int t = 0; t < kPageSize; ++t) p[static_cast<std::size_t>(t)] = 1;
      for (int t = 0; t < kPageSize; ++t) p[static_cast<std::size_t>(kPageSize + 1 + t)] = t == 7;
      for (int rows = 1; rows <= kMaxRows; ++rows) {
        const int tokens = rows % 2 == 0 ? kPageSize : 1 + (rows * 13) % 63;
        std::vector<float> of_scalar;
        for (const KernelSet* set : sets_scalar_first()) {
          std::vector<float> out(static_cast<std::size_t>(rows * stride), 2.0f);
          set->pv_integer({p.data(), page.plane.data(), out.data(), rows, tokens, kPageSize + 1,
                           stride, layout});
          if (of_scalar.empty()) of_scalar = out;
          ASSERT_EQ(out, of_scalar) << set->name << " " << describe(layout) << " rows " << rows;
        }
        for (int r = 0; r < rows; ++r) {
          const float* const row_p = p.data() + r * (kPageSize + 1);
          for (int c = 0; c < stride; ++c) {
            const auto g =
                static_cast<std::size_t>(std::min(c, head_dim - 1) / layout.quant.group_size);
            double sum = 2, magnitude = 2, largest = 0, distances = 0;
            for (int t = 0; t < tokens && c < head_dim; ++t) {
              const reference::Row& row = page.rows[static_cast<std::size_t>(t)];
              const double weight = row_p[t] * row.scales[g];
              const int code = row.codes[static_cast<std::size_t>(c)];
              sum += weight * (code - row.zeros[g]);
              magnitude += weight * (levels + std::abs(row.zeros[g]));
              largest = std::max(largest, weight);
              distances += std::abs(code - row.zeros[g]);
            }
            // A weight is off by half of largest/65535 and eight roundings of weights and sums.
            ASSERT_NEAR(of_scalar[static_cast<std::size_t>(r * stride + c)], sum,
                        largest / 65535 * 0.52 * distances + 8 * kEps * magnitude)
                << describe(layout) << " rows " << rows;
          }
        }
      }
    }
  }
}

// What was never written, past num_tokens or between others with weight 0, changes no bit.
TEST(Integer, UnwrittenTokensHaveNoEffect) {
  std::mt19937_64 random = seeded(84);
  for (const int head_dim : {32, 80, 128}) {
    for (const PlaneLayout& layout : layouts_for_integers(head_dim)) {
      for (const int tokens : {1, 15, 17, 63, 64}) {
        const auto is_hidden = [&](int token) { return token >= tokens || token % 3 == 1; };
        const std::vector<float> rows =
            normal_values(static_cast<std::size_t>(kPageSize * head_dim), random);
        constexpr int kRows = 5;
        const std::vector<float> q =
            normal_values(static_cast<std::size_t>(kRows * head_dim), random);
        std::vector<float> p(kRows * kPageSize);
        for (int i = 0; i < kRows * kPageSize; ++i) {
          p[static_cast<std::size_t>(i)] =
              is_hidden(i % kPageSize) ? 0.0f : 1.0f / static_cast<float>(1 + i % 7);
        }
        for (const KernelSet* set : runnable_sets()) {
          const Queries queries(*set, q, kRows, layout);
          std::vector<float> logits[2], outs[2];
          for (const int i : {0, 1}) {
            std::vector<std::uint8_t> plane = make_plane(layout, i == 0 ? 0x00 : 0xff);
            for (int t = 0; t < kPageSize; ++t) {
              if (is_hidden(t)) continue;
              std::uint8_t* const planes[] = {plane.data()};
              const std::int32_t token = t;
              ASSERT_TRUE(set->encode_rows(
                  {rows.data() + t * head_dim, planes, &token, 1, head_dim, layout, 1.0f}));
            }
            logits[i].assign(kRows * kPageSize, 0.0f);
            outs[i].assign(static_cast<std::size_t>(kRows * head_dim), 0.0f);
            set->qk_integer({queries.bytes.data(), queries.scales.data(), queries.sums.data(),
                             plane.data(), logits[i].data(), kRows, tokens, kPageSize, layout});
            set->pv_integer({p.data(), plane.data(), outs[i].data(), kRows, tokens, kPageSize,
                             head_dim, layout});
          }
          ASSERT_EQ(outs[0], outs[1]) << set->name << " " << describe(layout);
          for (std::size_t i = 0; i < logits[0].size(); ++i) {
            if (is_hidden(static_cast<int>(i) % kPageSize)) continue;
            ASSERT_EQ(logits[0][i], logits[1][i]) << set->name << " " << describe(layout);
          }
        }
      }
    }
  }
}

TEST(Integer, PrefetchingChangesNothing) {
  std::mt19937_64 random = seeded(85);
  const PlaneLayout layout{96, {3, 32, Codebook::kAffine}};
  const Page page(layout, random);
  const std::vector<float> q = normal_values(2 * 96, random), p(2 * kPageSize, 0.5f);
  for (const KernelSet* set : runnable_sets()) {
    const Queries queries(*set, q, 2, layout);
    std::vector<float> logits[2], outs[2];
    for (const int i : {0, 1}) {
      const std::uint8_t* next = i == 0 ? nullptr : page.plane.data();
      logits[i].resize(2 * kPageSize);
      outs[i].assign(2 * 96, 0.0f);
      set->qk_integer({queries.bytes.data(), queries.scales.data(), queries.sums.data(),
                       page.plane.data(), logits[i].data(), 2, kPageSize, kPageSize, layout, next});
      set->pv_integer(
          {p.data(), page.plane.data(), outs[i].data(), 2, kPageSize, kPageSize, 96, layout, next});
    }
    EXPECT_EQ(logits[0], logits[1]) << set->name;
    EXPECT_EQ(outs[0], outs[1]) << set->name;
  }
}

}  // namespace
}  // namespace oscar::kernels

// qk_codes and pv_codes against fp64 on the values that the codes stand for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/kernels_test_support.h"
#include "reference/codec.h"

namespace oscar::kernels {
namespace {

// Decoded values in fp64, and for each an upper bound of the magnitudes that a kernel adds up to
// get it: scale·(levels + |zero|).
struct Decoded {
  std::vector<double> values, magnitudes;  // [kPageSize][head_dim]
};

Decoded decode_page(const PlaneLayout& layout, const std::vector<std::uint8_t>& plane) {
  Decoded page;
  std::vector<float> exact(static_cast<std::size_t>(kPageSize * layout.head_dim));
  if (layout.quant.bits == 16) {
    scalar_set().decode_rows({plane.data(), exact.data(), layout.head_dim, 0, kPageSize, layout});
    for (const float x : exact) {
      page.values.push_back(x);
      page.magnitudes.push_back(std::abs(x));
    }
    return page;
  }
  for (int t = 0; t < kPageSize; ++t) {
    const reference::Row row = reference::read_row(plane.data(), layout, t);
    for (const double x : reference::decode(row, layout)) page.values.push_back(x);
    for (int c = 0; c < layout.head_dim; ++c) {
      const auto group = static_cast<std::size_t>(c / layout.quant.group_size);
      page.magnitudes.push_back(
          row.scales[group] * ((1 << layout.quant.level_bits()) - 1 + std::abs(row.zeros[group])));
    }
  }
  return page;
}

std::vector<PlaneLayout> layouts_for_codes(int head_dim) {
  std::vector<PlaneLayout> layouts;
  for (const PlaneLayout& layout : all_layouts(head_dim)) {
    if (layout.quant.scale_fit == ScaleFit::kPlain) layouts.push_back(layout);
  }
  layouts.push_back({head_dim, {16, head_dim}});
  return layouts;
}

TEST(QkCodes, MatchesFp64) {
  std::mt19937_64 random = seeded(51);
  for (const int head_dim : kHeadDims) {
    for (const PlaneLayout& layout : layouts_for_codes(head_dim)) {
      const std::vector<float> keys =
          normal_values(static_cast<std::size_t>(kPageSize * head_dim), random);
      std::vector<std::uint8_t> plane = make_plane(layout, 0);
      ASSERT_TRUE(encode_tokens(scalar_set(), keys, layout, 1.0f, plane.data()));
      const Decoded page = decode_page(layout, plane);
      constexpr int kMaxRows = 16;
      const int stride = head_dim + 1;
      const std::vector<float> q =
          normal_values(static_cast<std::size_t>(kMaxRows * stride), random);
      for (const KernelSet* set : runnable_sets()) {
        for (int rows = 1; rows <= kMaxRows; ++rows) {
          const int tokens = rows % 2 == 0 ? kPageSize : 1 + (rows * 13) % 63;
          const int logits_stride = tokens + 1;
          std::vector<float> logits(static_cast<std::size_t>(rows * logits_stride), -9.0f);
          set->qk_codes(
              {q.data(), plane.data(), logits.data(), rows, tokens, stride, logits_stride, layout});
          for (int r = 0; r < rows; ++r) {
            for (int t = 0; t < tokens; ++t) {
              double sum = 0, magnitude = 0;
              for (int c = 0; c < head_dim; ++c) {
                const double x = q[static_cast<std::size_t>(r * stride + c)];
                const auto index = static_cast<std::size_t>(t * head_dim + c);
                sum += x * page.values[index];
                magnitude += std::abs(x) * page.magnitudes[index];
              }
              ASSERT_NEAR(logits[static_cast<std::size_t>(r * logits_stride + t)], sum,
                          (head_dim + 4) * kEps * magnitude)
                  << set->name << " " << describe(layout) << " rows " << rows;
            }
            ASSERT_EQ(logits[static_cast<std::size_t>(r * logits_stride + tokens)], -9.0f);
          }
        }
      }
    }
  }
}

TEST(PvCodes, MatchesFp64) {
  std::mt19937_64 random = seeded(52);
  for (const int head_dim : kHeadDims) {
    for (const PlaneLayout& layout : layouts_for_codes(head_dim)) {
      const std::vector<float> values =
          normal_values(static_cast<std::size_t>(kPageSize * head_dim), random);
      std::vector<std::uint8_t> plane = make_plane(layout, 0);
      ASSERT_TRUE(encode_tokens(scalar_set(), values, layout, 1.0f, plane.data()));
      const Decoded page = decode_page(layout, plane);
      constexpr int kMaxRows = 16;
      const int stride = head_dim + 1;
      std::vector<float> p = normal_values(kMaxRows * (kPageSize + 1), random);
      for (float& weight : p) weight = std::exp(weight);
      for (const KernelSet* set : runnable_sets()) {
        for (int rows = 1; rows <= kMaxRows; ++rows) {
          const int tokens = rows % 2 == 0 ? kPageSize : 1 + (rows * 13) % 63;
          std::vector<float> out(static_cast<std::size_t>(rows * stride), 2.0f);
          set->pv_codes(
              {p.data(), plane.data(), out.data(), rows, tokens, kPageSize + 1, stride, layout});
          for (int r = 0; r < rows; ++r) {
            for (int c = 0; c < stride; ++c) {
              double sum = 2, magnitude = 2;
              for (int t = 0; t < tokens && c < head_dim; ++t) {
                const double weight = p[static_cast<std::size_t>(r * (kPageSize + 1) + t)];
                const auto index = static_cast<std::size_t>(t * head_dim + c);
                sum += weight * page.values[index];
                magnitude += weight * page.magnitudes[index];
              }
              // Weight, scale and code: two more roundings than a plain sum.
              ASSERT_NEAR(out[static_cast<std::size_t>(r * stride + c)], sum,
                          (tokens + 4) * kEps * magnitude)
                  << set->name << " " << describe(layout) << " rows " << rows;
            }
          }
        }
      }
    }
  }
}

// Cells past num_tokens may never have been written: whatever they hold, the results are the same,
// bit for bit.
TEST(OnCodes, UnwrittenTokensHaveNoEffect) {
  std::mt19937_64 random = seeded(53);
  for (const int head_dim : {32, 80, 128}) {
    for (const PlaneLayout& layout : layouts_for_codes(head_dim)) {
      for (const int tokens : {1, 15, 17, 63}) {
        const std::vector<float> rows =
            normal_values(static_cast<std::size_t>(tokens * head_dim), random);
        constexpr int kRows = 5;
        const std::vector<float> q =
            normal_values(static_cast<std::size_t>(kRows * head_dim), random);
        const std::vector<float> p =
            normal_values(static_cast<std::size_t>(kRows * tokens), random);
        for (const KernelSet* set : runnable_sets()) {
          std::vector<float> logits[2], outs[2];
          for (const int i : {0, 1}) {
            std::vector<std::uint8_t> plane = make_plane(layout, i == 0 ? 0x00 : 0xff);
            ASSERT_TRUE(encode_tokens(*set, rows, layout, 1.0f, plane.data()));
            logits[i].assign(static_cast<std::size_t>(kRows * tokens), 0.0f);
            outs[i].assign(static_cast<std::size_t>(kRows * head_dim), 0.0f);
            set->qk_codes({q.data(), plane.data(), logits[i].data(), kRows, tokens, head_dim,
                           tokens, layout});
            set->pv_codes(
                {p.data(), plane.data(), outs[i].data(), kRows, tokens, tokens, head_dim, layout});
          }
          ASSERT_EQ(logits[0], logits[1]) << set->name << " " << describe(layout);
          ASSERT_EQ(outs[0], outs[1]) << set->name << " " << describe(layout);
        }
      }
    }
  }
}

TEST(OnCodes, UnwrittenTokensBetweenOthersHaveNoWeight) {
  std::mt19937_64 random = seeded(54);
  constexpr int kHeadDim = 80, kRows = 3;
  for (const PlaneLayout& layout : layouts_for_codes(kHeadDim)) {
    const std::vector<float> written = normal_values(kPageSize * kHeadDim, random);
    std::vector<float> p = normal_values(kRows * kPageSize, random);
    const auto is_hidden = [](int token) { return token % 3 == 1; };
    for (int i = 0; i < kRows * kPageSize; ++i) {
      float& weight = p[static_cast<std::size_t>(i)];
      weight = is_hidden(i % kPageSize) ? 0.0f : std::exp(weight);
    }
    const std::vector<float> q = normal_values(kRows * kHeadDim, random);
    for (const KernelSet* set : runnable_sets()) {
      std::vector<float> outs[2], logits[2];
      for (const int i : {0, 1}) {
        std::vector<std::uint8_t> plane = make_plane(layout, i == 0 ? 0x00 : 0xff);
        for (int t = 0; t < kPageSize; ++t) {
          if (is_hidden(t)) continue;
          std::uint8_t* const planes[] = {plane.data()};
          const std::int32_t token = t;
          ASSERT_TRUE(set->encode_rows(
              {written.data() + t * kHeadDim, planes, &token, 1, kHeadDim, layout, 1.0f}));
        }
        outs[i].assign(kRows * kHeadDim, 0.0f);
        logits[i].assign(kRows * kPageSize, 0.0f);
        set->pv_codes({p.data(), plane.data(), outs[i].data(), kRows, kPageSize, kPageSize,
                       kHeadDim, layout});
        set->qk_codes({q.data(), plane.data(), logits[i].data(), kRows, kPageSize, kHeadDim,
                       kPageSize, layout});
      }
      ASSERT_EQ(outs[0], outs[1]) << set->name << " " << describe(layout);
      for (std::size_t i = 0; i < logits[0].size(); ++i) {
        if (is_hidden(static_cast<int>(i) % kPageSize)) continue;
        ASSERT_EQ(logits[0][i], logits[1][i]) << set->name << " " << describe(layout);
      }
    }
  }
}

// A weight of 0 in one row and not in another: the row of the 0 takes nothing from the token.
TEST(OnCodes, AWeightOfZeroTakesNothingWhateverOtherRowsTake) {
  std::mt19937_64 random = seeded(56);
  constexpr int kHeadDim = 96, kRows = 7;
  for (const PlaneLayout& layout : layouts_for_codes(kHeadDim)) {
    std::vector<std::uint8_t> plane = make_plane(layout, 0);
    ASSERT_TRUE(encode_tokens(scalar_set(), normal_values(kPageSize * kHeadDim, random), layout,
                              1.0f, plane.data()));
    std::vector<std::uint8_t> broken = plane;
    // Token 5 becomes NaN: its values where they are exact, else its scales.
    const std::size_t first = layout.quant.bits == 16
                                  ? static_cast<std::size_t>(5 * layout.code_row_bytes())
                                  : static_cast<std::size_t>(layout.scales_offset() + 10);
    const std::size_t count = layout.quant.bits == 16 ? 2 * kHeadDim : 2;
    std::fill_n(broken.begin() + static_cast<std::ptrdiff_t>(first), count, std::uint8_t{0xff});
    std::vector<float> p = normal_values(kRows * kPageSize, random);
    for (float& weight : p) weight = std::exp(weight);
    p[5] = 0;
    for (const KernelSet* set : runnable_sets()) {
      std::vector<float> outs[2];
      for (const int i : {0, 1}) {
        outs[i].assign(kRows * kHeadDim, 0.0f);
        set->pv_codes({p.data(), i == 0 ? plane.data() : broken.data(), outs[i].data(), kRows,
                       kPageSize, kPageSize, kHeadDim, layout});
        outs[i].resize(static_cast<std::size_t>(
            layout.quant.bits == 16 ? kHeadDim : std::min(kHeadDim, layout.quant.group_size)));
      }
      ASSERT_EQ(outs[0], outs[1]) << set->name << " " << describe(layout);
    }
  }
}

TEST(OnCodes, PrefetchingChangesNothing) {
  std::mt19937_64 random = seeded(55);
  const PlaneLayout layout{96, {3, 32, Codebook::kAffine}};
  const std::vector<float> rows = normal_values(kPageSize * 96, random),
                           q = normal_values(2 * 96, random);
  const std::vector<float> p(2 * kPageSize, 0.5f);
  for (const KernelSet* set : runnable_sets()) {
    std::vector<std::uint8_t> plane = make_plane(layout, 0);
    ASSERT_TRUE(encode_tokens(*set, rows, layout, 1.0f, plane.data()));
    std::vector<float> logits[2], outs[2];
    for (const int i : {0, 1}) {
      const std::uint8_t* next = i == 0 ? nullptr : plane.data();
      logits[i].resize(2 * kPageSize);
      outs[i].assign(2 * 96, 0.0f);
      set->qk_codes(
          {q.data(), plane.data(), logits[i].data(), 2, kPageSize, 96, kPageSize, layout, next});
      set->pv_codes(
          {p.data(), plane.data(), outs[i].data(), 2, kPageSize, kPageSize, 96, layout, next});
    }
    EXPECT_EQ(logits[0], logits[1]);
    EXPECT_EQ(outs[0], outs[1]);
  }
}

}  // namespace
}  // namespace oscar::kernels

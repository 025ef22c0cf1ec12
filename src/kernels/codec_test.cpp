// encode_rows and decode_rows: the same bytes from every set, and those the fp64 reference gives.
#include "reference/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "format/trellis.h"
#include "kernels/kernels_test_support.h"

namespace oscar::kernels {
namespace {

constexpr float kClips[] = {1.0f, 0.96f, 0.9f};

std::vector<float> rows_of_kinds(std::span<const RowKind> kinds, int head_dim, int rows_per_kind,
                                 std::mt19937_64& random) {
  std::vector<float> rows;
  for (const RowKind kind : kinds) {
    for (int i = 0; i < rows_per_kind; ++i) {
      const std::vector<float> row = make_row(kind, head_dim, random);
      rows.insert(rows.end(), row.begin(), row.end());
    }
  }
  return rows;
}

TEST(Codec, EverySetWritesTheSameBytes) {
  std::mt19937_64 random = seeded(11);
  for (const int head_dim : kHeadDims) {
    const std::vector<float> rows = rows_of_kinds(kAllKinds, head_dim, 3, random);
    const int num_rows = static_cast<int>(rows.size()) / head_dim;
    for (const PlaneLayout& layout : all_layouts(head_dim)) {
      for (const float clip : kClips) {
        std::vector<std::uint8_t> expected = make_plane(layout, 0xa5);
        ASSERT_TRUE(encode_tokens(scalar_set(), rows, layout, clip, expected.data()));
        std::vector<float> expected_rows(rows.size());
        scalar_set().decode_rows(
            {expected.data(), expected_rows.data(), head_dim, 0, num_rows, layout});
        for (const KernelSet* set : runnable_sets()) {
          std::vector<std::uint8_t> plane = make_plane(layout, 0xa5);
          ASSERT_TRUE(encode_tokens(*set, rows, layout, clip, plane.data()));
          ASSERT_EQ(plane, expected) << set->name << " " << describe(layout) << " clip " << clip;
          std::vector<float> decoded(rows.size());
          set->decode_rows({plane.data(), decoded.data(), head_dim, 0, num_rows, layout});
          ASSERT_EQ(std::memcmp(decoded.data(), expected_rows.data(), 4 * decoded.size()), 0)
              << set->name << " " << describe(layout);
        }
      }
    }
  }
}

// Counts what single precision decides otherwise than fp64. Scales and zero points may fall on the
// other side of a BF16 midpoint, codes on the other side of a half.
struct Disagreements {
  std::int64_t scales = 0, num_scales = 0, ties = 0, num_codes = 0;

  void add_scale(double stored, double truth, const std::string& what) {
    ++num_scales;
    if (stored == truth) return;
    ++scales;
    // Neighbours of a BF16 value lie at most 2^−7 of it away.
    ASSERT_LE(std::abs(stored - truth), 0x1p-7 * std::abs(truth)) << what;
  }
};

// The path is one of the cheapest. Its costs are Σ of 16 squares in single precision: (v − level)²
// has three roundings beside those of v, and sixteen additions.
void check_trellis_group(std::span<const double> clipped, double scale, std::span<const int> levels,
                         const std::string& what) {
  for (std::size_t first = 0; first < clipped.size(); first += kTrellisChannels) {
    const auto x = clipped.subspan(first, kTrellisChannels);
    const double cost = reference::trellis_cost(x, scale, levels.subspan(first, kTrellisChannels));
    double largest = 0;
    for (const double value : x) {
      largest = std::max(largest, std::abs(reference::level(value, scale, 3.5)) + 8);
    }
    const double tolerance = kEps * (20 * cost + 16 * 4 * largest * std::sqrt(cost / 16));
    ASSERT_LE(cost, reference::least_trellis_cost(x, scale) + 2 * tolerance)
        << what << " channel " << first;
  }
}

void check_group(std::span<const float> exact, std::span<const double> clipped, int bits,
                 reference::GroupScale stored, std::span<const int> codes, Codebook codebook,
                 Disagreements& count, const std::string& what) {
  const reference::GroupScale truth = reference::choose_scale(clipped, bits, codebook);
  count.add_scale(stored.scale, truth.scale, what);
  // The zero point is a function of the rounded scale: where that fell otherwise, it differs
  // rightly.
  if (stored.scale == truth.scale) count.add_scale(stored.zero, truth.zero, what);
  if (codebook == Codebook::kTrellis) {
    // Half of the cases: the reference goes through every path.
    if (exact.size() % 32 == 0) check_trellis_group(clipped, stored.scale, codes, what);
    return;
  }
  for (std::size_t i = 0; i < exact.size(); ++i) {
    ++count.num_codes;
    const double quotient = stored.scale == 0 ? clipped[i] : clipped[i] / stored.scale;
    const double level = reference::level(clipped[i], stored.scale, stored.zero);
    // One rounding of the quotient, one of the sum.
    const double tolerance = kEps * (std::abs(quotient) + std::abs(level));
    const double top = (1 << bits) - 1;
    if (std::abs(level - std::floor(level) - 0.5) <= tolerance) {
      ++count.ties;
      ASSERT_LE(std::abs(codes[i] - std::clamp(level, 0.0, top)), 0.5 + tolerance) << what;
    } else {
      ASSERT_EQ(codes[i], std::nearbyint(std::clamp(level, 0.0, top))) << what << " channel " << i;
    }
  }
}

TEST(Codec, CodesAndScalesAreTheReferences) {
  std::mt19937_64 random = seeded(12);
  Disagreements count;
  for (const int head_dim : kHeadDims) {
    const std::vector<float> rows = rows_of_kinds(kOrdinaryKinds, head_dim, 4, random);
    const int num_rows = static_cast<int>(rows.size()) / head_dim;
    for (const PlaneLayout& layout : all_layouts(head_dim)) {
      PlaneLayout plain = layout;
      plain.quant.scale_fit = ScaleFit::kPlain;
      for (const float clip : kClips) {
        std::vector<std::uint8_t> plane = make_plane(layout, 0), plain_plane = make_plane(plain, 0);
        ASSERT_TRUE(encode_tokens(scalar_set(), rows, layout, clip, plane.data()));
        ASSERT_TRUE(encode_tokens(scalar_set(), rows, plain, clip, plain_plane.data()));
        for (int token = 0; token < num_rows; ++token) {
          const std::string what = describe(layout) + " token " + std::to_string(token);
          const std::span<const float> row(rows.data() + token * head_dim,
                                           static_cast<std::size_t>(head_dim));
          const std::vector<double> clipped =
              reference::clip(row, reference::clip_threshold(row, clip));
          const reference::Row stored = reference::read_row(plane.data(), layout, token);
          const reference::Row unfitted = reference::read_row(plain_plane.data(), plain, token);
          ASSERT_EQ(stored.codes, unfitted.codes) << what << ": a scale fit must not change codes";
          ASSERT_EQ(stored.zeros, unfitted.zeros) << what;
          const auto size = static_cast<std::size_t>(layout.quant.group_size);
          for (std::size_t group = 0; group < stored.scales.size(); ++group) {
            const std::span<const float> exact = row.subspan(group * size, size);
            const std::span<const int> codes(stored.codes.data() + group * size, size);
            const reference::GroupScale chosen{unfitted.scales[group], unfitted.zeros[group]};
            check_group(exact, {clipped.data() + group * size, size}, layout.quant.bits, chosen,
                        codes, layout.quant.codebook, count, what);
            count.add_scale(stored.scales[group],
                            reference::fit_scale(exact, codes, chosen, layout.quant.scale_fit),
                            what);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
  std::cout << count.scales << " of " << count.num_scales << " scales and zero points and "
            << count.ties << " of " << count.num_codes << " codes lie within rounding of a tie\n";
  // A scale is decided otherwise where it lies within the error of a float sum of 256 terms, at
  // most 40 roundings of 2^−24, of a midpoint of BF16 values, which are at least 2^−8 apart:
  // 2·40·2^−24·2^8 = 0.0012. Codes: two roundings of at most 2^−24·64 (the offset rows' zero
  // points) either side of a half: 2·2·64·2^−24 = 1.5e-5 of them.
  EXPECT_LE(static_cast<double>(count.scales), 0.0012 * static_cast<double>(count.num_scales));
  EXPECT_LE(static_cast<double>(count.ties), 1.5e-5 * static_cast<double>(count.num_codes));
}

TEST(Codec, DecodedWithinHalfAStep) {
  std::mt19937_64 random = seeded(13);
  for (const int head_dim : kHeadDims) {
    const std::vector<float> rows = rows_of_kinds(kOrdinaryKinds, head_dim, 4, random);
    const int num_rows = static_cast<int>(rows.size()) / head_dim;
    for (const PlaneLayout& layout : all_layouts(head_dim)) {
      if (layout.quant.codebook != Codebook::kAffine) continue;
      if (layout.quant.scale_fit != ScaleFit::kPlain) continue;
      std::vector<std::uint8_t> plane = make_plane(layout, 0);
      ASSERT_TRUE(encode_tokens(scalar_set(), rows, layout, 1.0f, plane.data()));
      std::vector<float> decoded(rows.size());
      scalar_set().decode_rows({plane.data(), decoded.data(), head_dim, 0, num_rows, layout});
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const int token = static_cast<int>(i) / head_dim, channel = static_cast<int>(i) % head_dim;
        const reference::Row row = reference::read_row(plane.data(), layout, token);
        const auto group = static_cast<std::size_t>(channel / layout.quant.group_size);
        // BF16 moves the ends of the range by 2^−8 of the level range and of the zero point: only
        // there half a step is exceeded.
        const double end = ((1 << layout.quant.bits) + std::abs(row.zeros[group])) * 0x1p-8;
        const double steps = std::max(0.5, end) + 0x1p-10;
        ASSERT_LE(std::abs(double{decoded[i]} - rows[i]), steps * row.scales[group])
            << describe(layout) << " channel " << channel;
      }
    }
  }
}

TEST(Codec, SixteenBitsAreBf16Rows) {
  std::mt19937_64 random = seeded(14);
  for (const KernelSet* set : runnable_sets()) {
    for (const int head_dim : kHeadDims) {
      const PlaneLayout layout{head_dim, {16, head_dim}};
      std::vector<float> rows = rows_of_kinds(kAllKinds, head_dim, 2, random);
      rows[0] = -0.0f;
      const int num_rows = static_cast<int>(rows.size()) / head_dim;
      std::vector<std::uint8_t> plane = make_plane(layout, 0xff);
      ASSERT_TRUE(encode_tokens(*set, rows, layout, 1.0f, plane.data()));
      std::vector<float> decoded(rows.size());
      set->decode_rows({plane.data(), decoded.data(), head_dim, 0, num_rows, layout});
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const float expected = bf16_to_float(bf16_from_float(rows[i]));
        ASSERT_EQ(std::memcmp(&decoded[i], &expected, sizeof expected), 0)
            << set->name << " " << rows[i] << " gave " << decoded[i];
      }
    }
  }
}

TEST(Codec, RowsThatAreNotFiniteAreReportedAndStoredAsZeros) {
  std::mt19937_64 random = seeded(15);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const KernelSet* set : runnable_sets()) {
    for (const int bits : {2, 3, 4, 16}) {
      for (const float bad : {kInf, -kInf, kNan, -kNan}) {
        for (const Codebook codebook : {Codebook::kAffine, Codebook::kSymmetric}) {
          const PlaneLayout layout{80, {bits, 16, codebook, ScaleFit::kUnbiased}};
          std::vector<float> rows = normal_values(3 * 80, random);
          rows[80 + 79] = bad;
          std::vector<std::uint8_t> plane = make_plane(layout, 0xff);
          EXPECT_FALSE(encode_tokens(*set, rows, layout, 0.9f, plane.data()));
          std::vector<float> decoded(rows.size());
          set->decode_rows({plane.data(), decoded.data(), 80, 0, 3, layout});
          for (std::size_t c = 0; c < 80; ++c) EXPECT_EQ(decoded[80 + c], 0.0f);
          std::vector<std::uint8_t> without = make_plane(layout, 0xff);
          std::fill(rows.begin() + 80, rows.begin() + 160, 0.0f);
          EXPECT_TRUE(encode_tokens(*set, rows, layout, 0.9f, without.data()));
          EXPECT_EQ(plane, without) << "the other rows are as ever";
        }
      }
    }
  }
}

TEST(Codec, RowsWithoutAPlaneAreSkipped) {
  const PlaneLayout layout{32, {2, 32, Codebook::kAffine}};
  std::vector<float> rows(2 * 32, 3.0f);
  rows[5] = std::numeric_limits<float>::quiet_NaN();  // of the row that is skipped
  std::vector<std::uint8_t> plane = make_plane(layout, 0);
  std::uint8_t* const planes[] = {nullptr, plane.data()};
  const std::int32_t tokens[] = {0, 63};
  for (const KernelSet* set : runnable_sets()) {
    EXPECT_TRUE(set->encode_rows({rows.data(), planes, tokens, 2, 32, layout, 1.0f}));
    std::vector<float> decoded(32);
    set->decode_rows({plane.data(), decoded.data(), 32, 63, 1, layout});
    for (const float value : decoded) EXPECT_EQ(value, 3.0f);
  }
}

}  // namespace
}  // namespace oscar::kernels

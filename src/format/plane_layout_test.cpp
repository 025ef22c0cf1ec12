#include "format/plane_layout.h"

#include <gtest/gtest.h>

#include "base/test_files.h"

namespace oscar {
namespace {

PlaneLayout layout(int head_dim, int bits, int group, Codebook codebook) {
  return {head_dim, {bits, group, codebook, ScaleFit::kPlain}};
}

// Sizes worked out by hand: 64 tokens × (code bytes + 2 bytes a scale (+ 2 a zero point)).
TEST(PlaneLayout, Sizes) {
  constexpr auto kAffine = Codebook::kAffine, kSymmetric = Codebook::kSymmetric;
  struct Case {
    int head_dim, bits, group;
    Codebook codebook;
    std::int64_t row_bytes, plane_bytes;
    double bits_per_value;
  };
  const Case cases[] = {
      {64, 2, 64, kAffine, 16, 64 * 20, 2.5},
      {64, 2, 64, kSymmetric, 16, 64 * 18, 2.25},
      {64, 3, 64, kSymmetric, 24, 64 * 26, 3.25},
      {64, 4, 64, kAffine, 32, 64 * 36, 4.5},
      {128, 2, 128, kAffine, 32, 64 * 36, 2.25},
      {128, 2, 128, kSymmetric, 32, 64 * 34, 2.125},
      {128, 3, 128, kAffine, 48, 64 * 52, 3.25},
      {128, 4, 64, kAffine, 64, 64 * 72, 4.5},
      {128, 2, 32, kAffine, 32, 64 * 48, 3.0},
      {80, 3, 80, kSymmetric, 30, 64 * 32, 3.2},
      {256, 2, 128, kSymmetric, 64, 64 * 68, 2.125},
      {64, 2, 64, Codebook::kTrellis, 16, 64 * 18, 2.25},
      {128, 2, 128, Codebook::kTrellis, 32, 64 * 34, 2.125},
  };
  for (const Case& c : cases) {
    const PlaneLayout plane = layout(c.head_dim, c.bits, c.group, c.codebook);
    SCOPED_TRACE(std::to_string(c.head_dim) + " " + std::to_string(c.bits));
    EXPECT_NO_THROW(plane.validate());
    EXPECT_EQ(plane.code_row_bytes(), c.row_bytes);
    EXPECT_EQ(plane.scales_offset(), 64 * c.row_bytes);
    EXPECT_EQ(plane.zeros_offset(), 64 * (c.row_bytes + 2 * c.head_dim / c.group));
    EXPECT_EQ(plane.plane_bytes(), c.plane_bytes);
    EXPECT_DOUBLE_EQ(plane.bits_per_value(), c.bits_per_value);
  }
  const PlaneLayout exact{96, {16, 128}};
  EXPECT_NO_THROW(exact.validate());
  EXPECT_EQ(exact.num_groups(), 0);
  EXPECT_EQ(exact.plane_bytes(), 64 * 96 * 2);
  EXPECT_DOUBLE_EQ(exact.bits_per_value(), 16);
}

TEST(PlaneLayout, EveryLegalHeadSizeIsLegal) {
  for (int head_dim = kMinHeadDim; head_dim <= kMaxHeadDim; head_dim += kHeadDimMultiple) {
    for (const int bits : {2, 3, 4, 16}) {
      EXPECT_NO_THROW(layout(head_dim, bits, head_dim, Codebook::kAffine).validate()) << head_dim;
      EXPECT_NO_THROW(layout(head_dim, bits, 16, Codebook::kSymmetric).validate()) << head_dim;
    }
  }
}

TEST(PlaneLayout, RefusalsNameTheValue) {
  const auto refused = [](PlaneLayout plane, const std::vector<std::string>& parts) {
    expect_error(ErrorCode::kInvalidArgument, parts, [&] { plane.validate(); });
  };
  for (const int head_dim : {-64, 0, 16, 31, 40, 100, 272, 512}) {
    refused(layout(head_dim, 2, 16, Codebook::kAffine),
            {"head size " + std::to_string(head_dim), "multiples of 16 from 32 to 256"});
  }
  for (const int bits : {-2, 0, 1, 5, 8, 32}) {
    refused(layout(64, bits, 64, Codebook::kAffine),
            {"bits " + std::to_string(bits), "2, 3, 4, 16"});
  }
  for (const int group : {-16, 0, 8, 24, 48, 128}) {
    refused(layout(64, 2, group, Codebook::kAffine),
            {"group size " + std::to_string(group), "head size 64"});
  }
  refused({64, {2, 64, static_cast<Codebook>(7)}}, {"codebook 7"});
  for (const int bits : {3, 4}) {
    refused(layout(64, bits, 64, Codebook::kTrellis),
            {"trellis codes have 2 bits, and " + std::to_string(bits) + " are asked for"});
  }
  refused({64, {2, 64, Codebook::kAffine, static_cast<ScaleFit>(9)}}, {"scale fit 9"});
}

// Page 116508 lies past 2^31 bytes at 18 KiB a page; addresses are 64-bit.
TEST(PlaneLayout, PlanesFarAway) {
  const PlaneLayout plane = layout(128, 2, 128, Codebook::kAffine);
  PlaneView view;
  view.base = reinterpret_cast<std::uint8_t*>(std::uintptr_t{64});  // never read
  view.layout = plane;
  view.head_stride_bytes = plane.plane_bytes();
  view.page_stride_bytes = 8 * plane.plane_bytes();
  const auto distance = reinterpret_cast<std::uintptr_t>(view.plane(120000, 7)) -
                        reinterpret_cast<std::uintptr_t>(view.base);
  EXPECT_EQ(distance, std::uintptr_t{120000} * 8 * 2304 + 7 * 2304);
}

}  // namespace
}  // namespace oscar

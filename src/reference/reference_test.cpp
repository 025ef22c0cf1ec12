// The reference against facts that need no reference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/bf16.h"
#include "reference/attention.h"
#include "reference/codec.h"
#include "reference/rotation.h"

namespace oscar::reference {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Reference, Bf16RoundingAgreesWithTheBitwiseOne) {
  // Every BF16 value, and the floats just below, at and above each midpoint.
  for (std::uint32_t high = 0; high < 0x7f7f; ++high) {
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const std::uint32_t bits = high << 16 | low;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      ASSERT_EQ(round_to_bf16(value), double{bf16_to_float(bf16_from_float(value))}) << value;
      ASSERT_EQ(round_to_bf16(-value), -round_to_bf16(value));
    }
  }
}

TEST(Reference, HandWorkedAffineRow) {
  // Range 0 … 6 at two bits: scale 2, zero point 0; 3 is a tie between codes 1 and 2 and goes to
  // the even one.
  const std::vector<float> row = {0, 6, 2, 4, 1, 3, 5, 0.9f, 6, 6, 6, 6, 0, 0, 0, 0,
                                  0, 0, 0, 0, 0, 0, 0, 0,    0, 0, 0, 0, 0, 0, 0, 0};
  const PlaneLayout layout{32, {2, 32, Codebook::kAffine}};
  const Row coded = encode(row, layout, 1.0f);
  EXPECT_EQ(coded.scales[0], 2);
  EXPECT_EQ(coded.zeros[0], 0);
  EXPECT_EQ(std::vector<int>(coded.codes.begin(), coded.codes.begin() + 8),
            (std::vector<int>{0, 3, 1, 2, 0, 2, 2, 0}));
}

TEST(Reference, ClipThresholdIsTheOrderStatistic) {
  std::vector<float> row(80);
  for (int i = 0; i < 80; ++i)
    row[static_cast<std::size_t>((i * 37) % 80)] = static_cast<float>(i % 2 ? -i : i);
  EXPECT_EQ(clip_threshold(row, 1.0f), 79);
  EXPECT_EQ(clip_threshold(row, 0.9f), 71);  // the 72nd smallest of 0 … 79
  EXPECT_EQ(clip_threshold(row, 0.01f), 0);
}

TEST(Reference, PlanesHoldWhatWasWritten) {
  for (const int bits : {2, 3, 4}) {
    const PlaneLayout layout{48, {bits, 16, Codebook::kAffine}};
    std::vector<std::uint8_t> plane(static_cast<std::size_t>(layout.plane_bytes()), 0xa5);
    Row row;
    for (int c = 0; c < 48; ++c) row.codes.push_back((c * 5 + 3) % (1 << bits));
    row.scales = {1, 0.5, 3};
    row.zeros = {-1, 2, 0};
    write_row(row, layout, 63, plane.data());
    const Row back = read_row(plane.data(), layout, 63);
    EXPECT_EQ(back.codes, row.codes);
    EXPECT_EQ(back.scales, row.scales);
    EXPECT_EQ(back.zeros, row.zeros);
    EXPECT_EQ(plane[0], 0xa5) << "token 0 must be untouched";
  }
}

// With equal logits the output is the mean position of what is attended.
double mean_position(int num_tokens, std::int64_t query, const AttentionOptions& options) {
  std::vector<Token> tokens;
  for (int t = 0; t < num_tokens; ++t) tokens.push_back({{0.0}, {double(t)}, t});
  const std::vector<double> q = {1.0};
  return attend(q, query, tokens, 1, options).out[0];
}

TEST(Reference, WindowCountsTheQuerysOwnToken) {
  AttentionOptions options;
  options.causal = true;
  options.window = 4;
  EXPECT_NEAR(mean_position(10, 9, options), 7.5, 1e-12);
  options.window = 128;
  EXPECT_NEAR(mean_position(127, 126, options), 63, 1e-12);
  EXPECT_NEAR(mean_position(128, 127, options), 63.5, 1e-12);
  EXPECT_NEAR(mean_position(129, 128, options), 64.5, 1e-12);
  EXPECT_NEAR(mean_position(200, 199, options), 135.5, 1e-12);
}

TEST(Reference, AttentionParts) {
  const std::vector<double> q = {2.0};
  std::vector<Token> tokens = {{{1.0}, {10.0}, 0}, {{3.0}, {20.0}, 1}, {{5.0}, {kInf}, 2, -kInf}};
  AttentionOptions options;
  options.scale = 0.5;
  AttentionResult result = attend(q, 2, tokens, 1, options);
  const double w = std::exp(3.0) / (std::exp(1.0) + std::exp(3.0));
  EXPECT_NEAR(result.out[0], 10 * (1 - w) + 20 * w, 1e-12);
  EXPECT_NEAR(result.lse, std::log(std::exp(1.0) + std::exp(3.0)), 1e-12);

  options.sink = 3.0;  // takes as much as the second token
  result = attend(q, 2, tokens, 1, options);
  const double sum = std::exp(1.0) + 2 * std::exp(3.0);
  EXPECT_NEAR(result.out[0], (10 * std::exp(1.0) + 20 * std::exp(3.0)) / sum, 1e-12);

  options.sink.reset();
  options.soft_cap = 2.0;
  tokens[0].mask = 1.5;
  options.mask_slope = 0.25;
  const double a = 2 * std::tanh(0.5) + 0.375, b = 2 * std::tanh(1.5);
  EXPECT_NEAR(attend(q, 2, tokens, 1, options).lse, std::log(std::exp(a) + std::exp(b)), 1e-12);

  const AttentionResult empty = attend(q, 2, {}, 1, AttentionOptions{});
  EXPECT_EQ(empty.out[0], 0);
  EXPECT_EQ(empty.lse, -kInf);
}

TEST(Reference, HadamardIsItsOwnInverseAndMatchesItsSigns) {
  constexpr unsigned kSize = 64;
  for (unsigned row = 0; row < kSize; ++row) {
    std::vector<double> x(kSize, 0.0);
    x[row] = 1;
    hadamard(x);
    for (unsigned c = 0; c < kSize; ++c) {
      const double sign = __builtin_parity(row & c) ? -1 : 1;
      EXPECT_NEAR(x[c], sign / 8, 1e-15);
    }
    hadamard(x);
    EXPECT_NEAR(x[row], 1, 1e-14);
  }
  EXPECT_EQ(reverse_bits(0b0011010, 7), 0b0101100u);
}

TEST(Reference, RopeLogitsDependOnDistanceAlone) {
  for (const RopePairing pairing : {RopePairing::kHalfSplit, RopePairing::kInterleaved}) {
    const RopeSpec spec{pairing, {1.0f, 0.1f, 0.01f}, 1.0f};
    const std::vector<double> q = {1, -2, 3, 0.5, 4, -1, 7}, k = {2, 1, -1, 3, 0.25, 5, -2};
    const auto logit = [&](double i, double j) {
      std::vector<double> a = q, b = k;
      rotate_by_position(a, spec, i);
      rotate_by_position(b, spec, j);
      return dot(a, b);
    };
    EXPECT_NEAR(logit(7, 3), logit(1004, 1000), 1e-10);
    EXPECT_GT(std::abs(logit(7, 3) - logit(7, 4)), 1e-2);
  }
}

}  // namespace
}  // namespace oscar::reference

// Faults that other projects' users met, as tests of the codec and the kernels on codes.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/kernels_test_support.h"
#include "reference/attention.h"
#include "reference/rotation.h"

namespace oscar::kernels {
namespace {

// Groups of one value: openvinotoolkit/openvino#37095. A range of zero must not become an infinite
// inverse.
TEST(Reports, ConstantGroupsDecodeToTheirBf16Value) {
  const struct {
    float value, decoded;
  } cases[] = {{0.0f, 0.0f},         {-0.0f, 0.0f},          {100.0f, 100.0f},
               {-3.25f, -3.25f},     {0.1f, 0.10009765625f}, {2049.0f, 2048.0f},
               {60000.0f, 59904.0f}, {70000.0f, 70144.0f}};
  for (const KernelSet* set : runnable_sets()) {
    for (const int bits : {2, 3, 4}) {
      for (const ScaleFit fit : {ScaleFit::kPlain, ScaleFit::kUnbiased, ScaleFit::kLeastSquares}) {
        for (const auto& [value, expected] : cases) {
          const PlaneLayout layout{64, {bits, 32, Codebook::kAffine, fit}};
          const std::vector<float> row(64, value);
          std::vector<std::uint8_t> plane = make_plane(layout, 0xff);
          ASSERT_TRUE(encode_tokens(*set, row, layout, 0.9f, plane.data()));
          std::vector<float> decoded(64);
          set->decode_rows({plane.data(), decoded.data(), 64, 0, 1, layout});
          for (const float x : decoded)
            ASSERT_EQ(x, expected) << set->name << " " << describe(layout);
        }
      }
    }
  }
}

TEST(Reports, ConstantGroupsAreFiniteWithoutAZeroPoint) {
  for (const KernelSet* set : runnable_sets()) {
    for (const float value : {0.0f, -0.0f, 100.0f, -3.25f, 0.1f, 2049.0f, 60000.0f, 70000.0f}) {
      const PlaneLayout layout{64, {2, 32, Codebook::kSymmetric, ScaleFit::kUnbiased}};
      const std::vector<float> row(64, value);
      std::vector<std::uint8_t> plane = make_plane(layout, 0xff);
      ASSERT_TRUE(encode_tokens(*set, row, layout, 1.0f, plane.data()));
      std::vector<float> decoded(64);
      set->decode_rows({plane.data(), decoded.data(), 64, 0, 1, layout});
      // The fitted scale makes up for the missing level: one rounding to BF16 remains.
      for (const float x : decoded) ASSERT_NEAR(x, value, std::abs(value) * 0x1p-8) << set->name;
    }
  }
}

TEST(Reports, AZeroValueChannelAttendsToExactlyZero) {
  std::mt19937_64 random = seeded(21);
  for (const KernelSet* set : runnable_sets()) {
    for (const Codebook codebook : {Codebook::kAffine, Codebook::kSymmetric}) {
      const PlaneLayout layout{32, {2, 16, codebook, ScaleFit::kPlain}};
      std::vector<float> rows = normal_values(kPageSize * 32, random);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (i % 32 >= 16) rows[i] = 0;  // the second group, all tokens
      }
      std::vector<std::uint8_t> plane = make_plane(layout, 0xff);
      ASSERT_TRUE(encode_tokens(*set, rows, layout, 1.0f, plane.data()));
      const std::vector<float> weights(kPageSize, 1.0f / kPageSize);
      std::vector<float> out(32, 0.0f);
      set->pv_codes(
          {weights.data(), plane.data(), out.data(), 1, kPageSize, kPageSize, 32, layout});
      for (std::size_t c = 16; c < 32; ++c) ASSERT_EQ(out[c], 0.0f) << set->name;
    }
  }
}

// Head sizes that are no power of two: InternLM/lmdeploy#4849. Padding lanes must not take part in
// min and max.
TEST(Reports, PaddingNeverEntersTheRange) {
  for (const KernelSet* set : runnable_sets()) {
    for (const int head_dim : {80, 96, 112, 192}) {
      for (const PlaneLayout& layout : all_layouts(head_dim)) {
        if (layout.quant.codebook != Codebook::kAffine || layout.quant.bits != 2) continue;
        std::vector<float> row;
        for (int c = 0; c < head_dim; ++c) row.push_back(static_cast<float>(10 + c % 4));
        std::vector<std::uint8_t> plane = make_plane(layout, 0xff);
        ASSERT_TRUE(encode_tokens(*set, row, layout, 1.0f, plane.data()));
        std::vector<float> decoded(row.size());
        set->decode_rows({plane.data(), decoded.data(), head_dim, 0, 1, layout});
        ASSERT_EQ(decoded, row) << set->name << " " << describe(layout);
      }
    }
  }
}

// Large activations: turboderp-org/exllamav2#493. Scores beyond the range of half precision.
TEST(Reports, LargeScoresStayFinite) {
  const PlaneLayout layout{128, {2, 128, Codebook::kAffine}};
  const std::vector<float> key(128, 30.0f), value = [] {
    std::vector<float> v;
    for (int c = 0; c < 128; ++c) v.push_back(static_cast<float>(c % 4));
    return v;
  }();
  for (const KernelSet* set : runnable_sets()) {
    std::vector<std::uint8_t> k = make_plane(layout, 0xff), v = make_plane(layout, 0xff);
    ASSERT_TRUE(encode_tokens(*set, key, layout, 1.0f, k.data()));
    ASSERT_TRUE(encode_tokens(*set, value, layout, 1.0f, v.data()));
    float logit = 0, max = -std::numeric_limits<float>::infinity(), sum = 0, rescale = 0;
    set->qk_codes({key.data(), k.data(), &logit, 1, 1, 128, 1, layout});
    EXPECT_EQ(logit, 115200.0f) << set->name;
    set->softmax_tile({&logit, &max, &sum, &rescale, 1, 1, 1});
    std::vector<float> out(128, 0.0f);
    set->pv_codes({&logit, v.data(), out.data(), 1, 1, 1, 128, layout});
    EXPECT_EQ(sum, 1.0f);
    EXPECT_EQ(out, value) << set->name;
  }
}

std::vector<float> hadamard_matrix(int size) {
  std::vector<float> matrix;
  for (int i = 0; i < size; ++i) {
    std::vector<double> row(static_cast<std::size_t>(size), 0.0);
    row[static_cast<std::size_t>(i)] = 1;
    reference::hadamard(row);
    for (const double x : row) matrix.push_back(static_cast<float>(x));
  }
  return matrix;
}

TEST(Reports, RotatingOutliersKeepsLogits) {
  std::mt19937_64 random = seeded(22);
  for (const KernelSet* set : runnable_sets()) {
    for (const int head_dim : {64, 128, 256}) {
      const std::vector<float> matrix = hadamard_matrix(head_dim);
      const auto rotate = [&](const std::vector<float>& x) {
        std::vector<float> y(x.size());
        set->transform_rows({x.data(), matrix.data(), y.data(), 1, head_dim, head_dim, head_dim});
        return y;
      };
      std::vector<float> four(static_cast<std::size_t>(head_dim), 0.0f);
      for (const std::size_t c : {3u, 11u, 17u, 30u}) four[c] = 30000.0f;
      for (const float x : rotate(four)) {
        ASSERT_LE(std::abs(x), 120000 / std::sqrt(head_dim) * (1 + 8 * kEps));
      }
      std::vector<float> q = normal_values(static_cast<std::size_t>(head_dim), random);
      std::vector<float> k = normal_values(static_cast<std::size_t>(head_dim), random);
      k[5] *= 1000;
      const std::vector<float> rotated_q = rotate(q), rotated_k = rotate(k);
      const auto dot = [](const std::vector<float>& a, const std::vector<float>& b) {
        return reference::dot(std::vector<double>(a.begin(), a.end()),
                              std::vector<double>(b.begin(), b.end()));
      };
      ASSERT_LE(std::abs(dot(q, k) - dot(rotated_q, rotated_k)),
                1e-3 * std::sqrt(dot(q, q) * dot(k, k)));
    }
  }
}

}  // namespace
}  // namespace oscar::kernels

// What each switch of an ablation changes in a fit, and that it changes nothing else.
#include "calibrate/fit_variant.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/test_files.h"
#include "calibrate/calibrate_test_support.h"
#include "calibrate/methods.h"
#include "methods/hadamard.h"

namespace oscar::calibrate {
namespace {

constexpr int kDim = 64;

// Keys, queries and values whose covariances have eigenbases of their own: keys are large where
// queries are small. The two KV heads see the channels in opposite orders.
Statistics statistics(bool raw_targets, int head_dim = kDim) {
  SyntheticOptions options;
  options.num_tokens = 500;
  options.shape.head_dim_k = options.shape.head_dim_v = head_dim;
  for (int i = 0; i < head_dim; ++i) {
    options.key_deviation.push_back(std::exp(0.03f * static_cast<float>(i)));
    options.query_deviation.push_back(std::exp(-0.05f * static_cast<float>(i)));
  }
  SyntheticLayer layer = make_synthetic(options, nullptr);
  for (int row = 0; row < layer.num_tokens * 4; ++row) {
    float* query = &layer.queries[std::size_t(row) * head_dim];
    if (row % 4 / 2 == 1) std::reverse(query, query + head_dim);
  }
  Collector collector({.raw_targets = raw_targets});
  feed(layer, 0, 128, nullptr, &collector);
  return collector.statistics();
}

Artefact fitted(const Statistics& from, const std::string& variant,
                Method method = Method::kOscar) {
  FitOptions options{.method = method};
  if (!variant.empty()) options.variant = parse_fit_variant(variant);
  return fit(from, {}, options);
}

// max over i ≠ j of |(R·Mᵀ)ᵀ C (R·Mᵀ)|_ij over the largest diagonal entry, with M the mix that R
// ends in: 0 where the transform's eigenbasis is that of C.
double off_diagonal(const std::vector<double>& covariance, const std::vector<float>& transforms,
                    int head, const std::vector<double>& mix) {
  std::vector<double> u(std::size_t{kDim} * kDim), product(u.size());
  const float* r = transforms.data() + std::size_t(head) * kDim * kDim;
  for (int i = 0; i < kDim; ++i) {
    for (int j = 0; j < kDim; ++j) {
      for (int k = 0; k < kDim; ++k) u[i * kDim + j] += double(r[i * kDim + k]) * mix[j * kDim + k];
    }
  }
  for (int i = 0; i < kDim; ++i) {
    for (int j = 0; j < kDim; ++j) {
      for (int k = 0; k < kDim; ++k) {
        product[i * kDim + j] += covariance[i * kDim + k] * u[k * kDim + j];
      }
    }
  }
  double diagonal = 0, off = 0;
  for (int i = 0; i < kDim; ++i) {
    for (int j = 0; j < kDim; ++j) {
      double entry = 0;
      for (int k = 0; k < kDim; ++k) entry += u[k * kDim + i] * product[k * kDim + j];
      (i == j ? diagonal : off) = std::max(i == j ? diagonal : off, std::abs(entry));
    }
  }
  return off / diagonal;
}

// R = U·H·P holds float roundings of 2^-24; a foreign basis leaves some tenths.
constexpr double kDiagonal = 1e-5, kForeign = 0.02;

void expect_same_but_fitted_transforms(const Artefact& a, const Artefact& b) {
  EXPECT_EQ(a.method, b.method);
  EXPECT_EQ(a.k_quant, b.k_quant);
  EXPECT_EQ(a.v_quant, b.v_quant);
  EXPECT_EQ(a.hadamard, b.hadamard);
  EXPECT_EQ(a.layers[0].k_mean, b.layers[0].k_mean);
  EXPECT_EQ(a.layers[0].rope, b.layers[0].rope);
}

TEST(FitVariant, NamesAreReadAndWritten) {
  for (const std::string& name : fit_variant_names()) {
    EXPECT_EQ(parse_fit_variant(name).text(), name);
    EXPECT_TRUE(parse_fit_variant(name).any());
  }
  EXPECT_EQ(parse_fit_variant("per-layer,no-p").text(), "no-p,per-layer");
  EXPECT_FALSE(FitVariant{}.any());
  const auto refused = [](const std::string& text, std::vector<std::string> parts) {
    expect_error(ErrorCode::kInvalidArgument, parts, [&] { parse_fit_variant(text); });
  };
  refused("no-x", {"'no-x' is unknown", "no-u, no-p, target=raw, per-layer"});
  refused("", {"'' is unknown"});
  refused("no-p,no-p", {"'no-p' is given twice"});
  refused("no-u,target=raw", {"target=raw", "no eigenbasis"});
}

TEST(FitVariant, NoUIsTheHadamardWithClipsOfItsOwn) {
  const Statistics from = statistics(false);
  const Artefact base = fitted(from, ""), without = fitted(from, "no-u");
  expect_same_but_fitted_transforms(base, without);
  const std::vector<float> mix = methods::hadamard_times_p(kDim);
  for (std::size_t i = 0; i < 2 * mix.size(); ++i) {
    ASSERT_EQ(without.layers[0].k_transform[i], mix[i % mix.size()]);
    ASSERT_EQ(without.layers[0].v_transform[i], mix[i % mix.size()]);
  }
  EXPECT_NE(base.layers[0].k_transform, without.layers[0].k_transform);
  EXPECT_EQ(without.info.at("fit.ablation"), "no-u");
  EXPECT_EQ(base.info.count("fit.ablation"), 0u);
}

TEST(FitVariant, NoUTakesTheRotatedCandidatesOfOscarPlus) {
  const Artefact without = fitted(statistics(false), "no-u", Method::kOscarPlus);
  EXPECT_EQ(without.info.at("fit.keys").find("rotated"), std::string::npos);
  EXPECT_NE(without.info.at("fit.keys").find("hadamard"), std::string::npos);
  EXPECT_NE(without.info.at("fit.keys").find("smoothed"), std::string::npos);
  EXPECT_EQ(without.info.at("fit.values").find("rotated"), std::string::npos);
}

TEST(FitVariant, NoPIsTheSameBasisInAnotherOrder) {
  const Statistics from = statistics(false);
  const Artefact base = fitted(from, ""), without = fitted(from, "no-p");
  expect_same_but_fitted_transforms(base, without);
  EXPECT_FALSE(without.bit_reversal);
  for (int row = 0; row < 2 * kDim; ++row) {
    for (int j = 0; j < kDim; ++j) {
      const int from_column = methods::bit_reversed(j, kDim);
      ASSERT_NEAR(without.layers[0].k_transform[row * kDim + j],
                  base.layers[0].k_transform[row * kDim + from_column], 1e-6f);
    }
  }
  // One group a head: the order of its channels changes no error beyond the order of sums.
  EXPECT_EQ(base.layers[0].k_clip, without.layers[0].k_clip);
  EXPECT_NEAR(base.layers[0].k_error, without.layers[0].k_error, 1e-4f);
  expect_error(ErrorCode::kInvalidArgument, {"no-p", "head size 96"},
               [] { fitted(statistics(false, 96), "no-p"); });
}

TEST(FitVariant, RawTargetDiagonalizesKeysAndValues) {
  const Statistics from = statistics(true);
  const Artefact base = fitted(from, ""), raw = fitted(from, "target=raw");
  expect_same_but_fitted_transforms(base, raw);
  const std::vector<double> mix = methods::hadamard_times_p_double(kDim);
  for (int head = 0; head < 2; ++head) {
    const HeadStatistics& sums = from.layers.at(0).heads[head];
    const ArtefactLayer &b = base.layers[0], &r = raw.layers[0];
    EXPECT_LT(off_diagonal(sums.query_covariance, b.k_transform, head, mix), kDiagonal);
    EXPECT_LT(off_diagonal(sums.output_covariance, b.v_transform, head, mix), kDiagonal);
    EXPECT_LT(off_diagonal(sums.key_covariance, r.k_transform, head, mix), kDiagonal);
    EXPECT_LT(off_diagonal(sums.value_covariance, r.v_transform, head, mix), kDiagonal);
    EXPECT_GT(off_diagonal(sums.query_covariance, r.k_transform, head, mix), kForeign);
    EXPECT_GT(off_diagonal(sums.output_covariance, r.v_transform, head, mix), kForeign);
  }
  expect_error(ErrorCode::kInvalidArgument, {"target=raw", "no KᵀK"},
               [] { fitted(statistics(false), "target=raw"); });
}

TEST(FitVariant, RawTargetsAreSumsOverTheRows) {
  SyntheticOptions options;
  options.num_tokens = 300;  // more than one block of the sum
  const RopeTable table(synthetic_rope(kDim), 512);
  SyntheticLayer layer = make_synthetic(options, &table);
  layer.keys[std::size_t(7) * 2 * kDim + 3] = NAN;  // token 7, head 0: left out
  Collector collector({.raw_targets = true});
  feed(layer, 0, 300, &table, &collector);
  for (int head = 0; head < 2; ++head) {
    const HeadStatistics& sums = collector.statistics().layers.at(0).heads[head];
    for (const int i : {0, 5, 63}) {
      for (const int j : {0, 9, 63}) {
        double keys = 0, values = 0, size = 0;
        for (int t = 0; t < 300; ++t) {
          const std::size_t row = (std::size_t(t) * 2 + head) * kDim;
          const double value = double(layer.values[row + i]) * double(layer.values[row + j]);
          values += value;
          size += std::abs(value);
          if (t != 7 || head != 0)
            keys += double(layer.keys[row + i]) * double(layer.keys[row + j]);
        }
        // Float sums of 256 terms: 256·2^-24 of the sum of magnitudes.
        EXPECT_NEAR(sums.key_covariance[i * kDim + j], keys, 1e-4 * (std::abs(keys) + 300));
        EXPECT_NEAR(sums.value_covariance[i * kDim + j], values, 2e-5 * size);
      }
    }
  }
}

TEST(FitVariant, PerLayerSharesOneBasisAndOneSmoothing) {
  const Statistics from = statistics(false);
  const Artefact base = fitted(from, ""), shared = fitted(from, "per-layer");
  expect_same_but_fitted_transforms(base, shared);
  const auto half = [](const std::vector<float>& values, int head) {
    const std::size_t size = values.size() / 2;
    return std::vector<float>(values.begin() + static_cast<std::ptrdiff_t>(head * size),
                              values.begin() + static_cast<std::ptrdiff_t>((head + 1) * size));
  };
  EXPECT_NE(half(base.layers[0].k_transform, 0), half(base.layers[0].k_transform, 1));
  EXPECT_EQ(half(shared.layers[0].k_transform, 0), half(shared.layers[0].k_transform, 1));
  EXPECT_EQ(half(shared.layers[0].v_transform, 0), half(shared.layers[0].v_transform, 1));
  std::vector<double> pooled = from.layers.at(0).heads[0].query_covariance;
  for (std::size_t i = 0; i < pooled.size(); ++i) {
    pooled[i] += from.layers.at(0).heads[1].query_covariance[i];
  }
  EXPECT_LT(
      off_diagonal(pooled, shared.layers[0].k_transform, 0, methods::hadamard_times_p_double(kDim)),
      kDiagonal);

  const Artefact plus = fitted(from, "", Method::kOscarPlus);
  const Artefact plus_shared = fitted(from, "per-layer", Method::kOscarPlus);
  const auto& inverse = plus.layers[0].k_transform_inverse_transposed;
  const auto& inverse_shared = plus_shared.layers[0].k_transform_inverse_transposed;
  ASSERT_FALSE(inverse.empty() || inverse_shared.empty());
  EXPECT_NE(half(inverse, 0), half(inverse, 1));
  EXPECT_EQ(half(inverse_shared, 0), half(inverse_shared, 1));
}

TEST(FitVariant, MethodsWithoutTransformsOfTheirOwnRefuse) {
  expect_error(ErrorCode::kInvalidArgument, {"no-p", "rotatekv fits no transforms"},
               [] { check_fit_variant(parse_fit_variant("no-p"), Method::kRotatekv); });
  check_fit_variant({}, Method::kRotatekv);
  check_fit_variant(parse_fit_variant("no-p"), Method::kOscarPlus);
}

}  // namespace
}  // namespace oscar::calibrate

// What fitting measures, against the same computed the long way in double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "calibrate/calibrate_test_support.h"
#include "calibrate/clip_fit.h"
#include "calibrate/key_fit.h"
#include "calibrate/methods.h"
#include "calibrate/value_fit.h"
#include "methods/hadamard.h"

namespace oscar::calibrate {
namespace {

const std::vector<double> kMix = methods::hadamard_times_p_double(64);

MatrixF gaussian_rows(int num_rows, int dim, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  return MatrixF::NullaryExpr(num_rows, dim, [&] { return normal(random); });
}

// Keys as the cache gives them back, raw basis; the mean (static) is added again.
MatrixF coded_keys(const Artefact& artefact, const SyntheticLayer& layer, int kv_head) {
  const ArtefactLayer& fitted = artefact.layers.at(0);
  const int dim = fitted.head_dim_k;
  const std::size_t begin = static_cast<std::size_t>(kv_head) * dim * dim;
  const auto& inverse_transposed = fitted.k_transform_inverse_transposed.empty()
                                       ? fitted.k_transform
                                       : fitted.k_transform_inverse_transposed;
  const Eigen::Map<const MatrixF> transform(fitted.k_transform.data() + begin, dim, dim);
  const Eigen::Map<const MatrixF> query(inverse_transposed.data() + begin, dim, dim);
  VectorF mean = VectorF::Zero(dim);
  if (!fitted.k_mean.empty()) {
    mean = Eigen::Map<const VectorF>(fitted.k_mean.data() + std::size_t(kv_head) * dim, dim);
  }
  const Eigen::Map<const MatrixF> all(layer.keys.data(), layer.num_tokens,
                                      layer.shape.num_kv_heads * dim);
  const MatrixF keys = all.middleCols(kv_head * dim, dim).rowwise() - mean.transpose();
  TrialCodec codec(kernels::selected_kernel_set());
  MatrixF rotated, decoded;
  codec.transform(keys, transform, &rotated);
  const auto& clip = fitted.k_clip[clip_index(artefact.k_quant.bits)];
  EXPECT_TRUE(codec.round_trip(rotated, {dim, artefact.k_quant},
                               clip.empty() ? 1.0f : clip[kv_head], &decoded));
  return (decoded * query.transpose()).rowwise() + mean.transpose();
}

// Correlation of q·k and q·k̂ over all keys, each query's mean taken out: softmax does not see it.
double logit_correlation(const Artefact& artefact, const SyntheticLayer& layer) {
  const int dim = layer.shape.head_dim_k;
  const MatrixD decoded = coded_keys(artefact, layer, 0).cast<double>();
  const MatrixD keys =
      Eigen::Map<const MatrixF>(layer.keys.data(), layer.num_tokens, dim).cast<double>();
  const MatrixD queries =
      Eigen::Map<const MatrixF>(layer.queries.data(), layer.num_tokens, dim).cast<double>();
  MatrixD exact = queries * keys.transpose();
  MatrixD coded = queries * decoded.transpose();
  exact.colwise() -= exact.rowwise().mean().eval();
  coded.colwise() -= coded.rowwise().mean().eval();
  return exact.cwiseProduct(coded).sum() / std::sqrt(exact.squaredNorm() * coded.squaredNorm());
}

// Keys N(0, 1) with one fixed offset of norm 921 on two channels, as models with a key bias have.
// Without the offset four levels keep a correlation of about 0.94; with it and no mean, 0.03. (Of
// two equal offsets half of the rotated channels would cancel to zero and keep their signs.)
TEST(Loss, AHugeKeyOffsetIsHarmlessOnceTheMeanIsOut) {
  SyntheticOptions options;
  options.shape = {.num_q_heads = 1, .num_kv_heads = 1, .head_dim_k = 128, .head_dim_v = 128};
  options.num_tokens = 512;
  options.key_offset.assign(128, 0.0f);
  options.key_offset[7] = 800.0f;
  options.key_offset[71] = 456.0f;
  const SyntheticLayer layer = make_synthetic(options, nullptr);
  Collector collector({});
  feed(layer, 0, 128, nullptr, &collector);
  EXPECT_GE(logit_correlation(fit(collector.statistics(), {}, {}), layer), 0.85);
  const Artefact quarot = make_data_free(Method::kQuarot, {}, {{0, layer.shape}});
  EXPECT_LT(logit_correlation(quarot, layer), 0.1);
}

class LogitTest : public ::testing::TestWithParam<int> {};

// One channel carries 1000 times the others: logits survive the transforms.
TEST_P(LogitTest, TransformsPreserveLogits) {
  const int dim = GetParam();
  SyntheticOptions options;
  options.shape = {.num_q_heads = 1, .num_kv_heads = 1, .head_dim_k = dim, .head_dim_v = dim};
  options.num_tokens = 200;
  options.key_deviation.assign(dim, 1.0f);
  options.key_deviation[5] = 1000.0f;
  const SyntheticLayer layer = make_synthetic(options, nullptr);
  Collector collector({});
  feed(layer, 0, 64, nullptr, &collector);
  const Eigen::Map<const MatrixF> keys(layer.keys.data(), layer.num_tokens, dim);
  const Eigen::Map<const MatrixF> queries(layer.queries.data(), layer.num_tokens, dim);
  const TrialCodec codec(kernels::selected_kernel_set());
  for (const Method method : {Method::kQuarot, Method::kOscar, Method::kOscarPlus}) {
    const Artefact artefact = method == Method::kQuarot
                                  ? make_data_free(method, {}, {{0, layer.shape}})
                                  : fit(collector.statistics(), {}, {.method = method});
    const ArtefactLayer& fitted = artefact.layers[0];
    const MatrixF key = Eigen::Map<const MatrixF>(fitted.k_transform.data(), dim, dim);
    const MatrixF query =
        fitted.k_transform_inverse_transposed.empty()
            ? key
            : Eigen::Map<const MatrixF>(fitted.k_transform_inverse_transposed.data(), dim, dim);
    MatrixF rotated_keys, rotated_queries;
    codec.transform(keys, key, &rotated_keys);
    codec.transform(queries, query, &rotated_queries);
    ASSERT_TRUE(rotated_keys.allFinite() && rotated_queries.allFinite());
    for (int i = 0; i < layer.num_tokens; ++i) {
      const double exact = queries.row(i).cast<double>().dot(keys.row(i).cast<double>());
      const double rotated =
          rotated_queries.row(i).cast<double>().dot(rotated_keys.row(i).cast<double>());
      const double bound = 1e-3 * double(queries.row(i).norm()) * double(keys.row(i).norm());
      ASSERT_NEAR(rotated, exact, bound) << method_name(method) << ", row " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadSizes, LogitTest, ::testing::Values(64, 80, 96, 112, 128, 192, 256));

TEST(Loss, ClipIsCloseToTheBestOfAllRanks) {
  TrialCodec codec(kernels::selected_kernel_set());
  const MatrixF rows = gaussian_rows(300, 64, 11);
  MatrixF metric = gaussian_rows(64, 64, 12);
  metric = (metric * metric.transpose()).eval();
  for (const Codebook codebook : {Codebook::kAffine, Codebook::kSymmetric}) {
    const PlaneLayout layout{64, {2, 64, codebook}};
    const ClipFit found = fit_clip(rows, layout, {.metric = &metric}, "rows", &codec);
    double best = HUGE_VAL;
    for (int rank = 32; rank <= 64; ++rank) {
      MatrixF error;
      const float ratio = rank == 64 ? 1.0f : (float(rank) - 0.5f) / 64;
      ASSERT_TRUE(codec.round_trip(rows, layout, ratio, &error));
      error -= rows;
      double sum = 0;
      for (int r = 0; r < 300; ++r) {
        for (int i = 0; i < 64; ++i) {
          for (int j = 0; j < 64; ++j) {
            sum += double(error(r, i)) * double(metric(i, j)) * double(error(r, j));
          }
        }
      }
      best = std::min(best, sum);
      // The fit reports the error at its own ratio: 64² float products a row.
      if (ratio == found.ratio) {
        EXPECT_NEAR(found.error, sum, 1e-4 * sum);
      }
    }
    EXPECT_LE(found.error, 1.02 * best);
  }
}

// On small errors ½ Var_p(e) is the KL divergence of attention, here computed for every query row.
TEST(Loss, DivergenceIsTheKlOfAttention) {
  const RopeTable table(synthetic_rope(64), 4096);
  SyntheticOptions options;
  options.num_tokens = 256;
  const SyntheticLayer layer = make_synthetic(options, &table);
  Collector collector({.sampled_keys = 256, .sampled_queries = 256, .seed = 1});
  feed(layer, 0, 256, &table, &collector);
  const LayerStatistics& stats = collector.statistics().layers.at(0);
  const SampleGeometry geometry = sample_geometry(0, stats);
  EXPECT_FALSE(geometry.windowed);
  const HeadSample sample = head_sample(stats, geometry, 1);
  const KeyHead head = key_head(stats, geometry, sample, 1, rotation_targets(stats, {}),
                                {.rope = &table, .subtract_mean = true, .name = "head"});
  const KeyTransform transform = key_transform(KeyBasis::kHadamard, head, kMix);
  TrialCodec codec(kernels::selected_kernel_set());
  const PlaneLayout layout{64, {4, 64, Codebook::kSymmetric, ScaleFit::kUnbiased}};
  const double measured =
      attention_divergence(head, transform, 1.0f, layout, sample, geometry, &codec);

  MatrixF rotated, decoded;
  codec.transform(head.stored, transform.key, &rotated);
  ASSERT_TRUE(codec.round_trip(rotated, layout, 1.0f, &decoded));
  const MatrixD error = ((decoded - rotated) * transform.key.transpose()).cast<double>();
  double divergence = 0;
  for (int t = 0; t < 256; ++t) {
    for (const int q_head : {2, 3}) {
      const Eigen::Map<const VectorF> query(&layer.queries[(std::size_t(t) * 4 + q_head) * 64], 64);
      std::vector<double> exact(t + 1), coded(t + 1);
      double exact_sum = 0, coded_sum = 0;
      for (int j = 0; j <= t; ++j) {
        const Eigen::Map<const VectorF> key(&layer.keys[(std::size_t(j) * 2 + 1) * 64], 64);
        const double scale = double(layer.scale);
        exact[j] = scale * query.cast<double>().dot(key.cast<double>());
        coded[j] = exact[j] + scale * error.row(j).dot(query.cast<double>());
        exact_sum += std::exp(exact[j]);
        coded_sum += std::exp(coded[j]);
      }
      for (int j = 0; j <= t; ++j) {
        const double p = std::exp(exact[j]) / exact_sum;
        divergence += p * (exact[j] - coded[j] + std::log(coded_sum / exact_sum));
      }
    }
  }
  divergence /= 512;
  EXPECT_GT(divergence, 0);
  // Third order: |e| is about 0.1 here, so the terms left out are below a tenth.
  EXPECT_NEAR(measured, divergence, 0.1 * divergence);
}

// A sample of an eighth of the keys says about the same as all of them, windows left out: the
// deviation of the estimate over seeds is about 5 % for keys and 15 % for values.
TEST(Loss, ASampleSpeaksForTheText) {
  SyntheticOptions options;
  options.num_tokens = 2048;
  options.shape = {.num_q_heads = 2, .num_kv_heads = 1, .head_dim_k = 64, .head_dim_v = 64};
  const SyntheticLayer layer = make_synthetic(options, nullptr);
  const auto errors = [&](std::int64_t sampled_keys) {
    Collector collector({.sampled_keys = sampled_keys, .sampled_queries = 300, .seed = 2});
    feed(layer, 0, 512, nullptr, &collector);
    const LayerStatistics& stats = collector.statistics().layers.at(0);
    const SampleGeometry geometry = sample_geometry(0, stats);
    EXPECT_TRUE(geometry.windowed);
    const HeadSample sample = head_sample(stats, geometry, 0);
    const RotationTargets targets = rotation_targets(stats, {});
    const KeyHead keys =
        key_head(stats, geometry, sample, 0, targets, {.subtract_mean = true, .name = "head"});
    const ValueHead values = value_head(stats, geometry, sample, 0, targets, true, "head");
    TrialCodec codec(kernels::selected_kernel_set());
    const PlaneLayout layout{64, {2, 64, Codebook::kSymmetric, ScaleFit::kUnbiased}};
    return std::pair(attention_divergence(keys, key_transform(KeyBasis::kHadamard, keys, kMix),
                                          1.0f, layout, sample, geometry, &codec),
                     output_error(values, value_transform(ValueBasis::kHadamard, values, kMix),
                                  1.0f, layout, sample, geometry, &codec) /
                         output_energy(sample, geometry));
  };
  const auto [all_keys, all_values] = errors(2048);
  const auto [some_keys, some_values] = errors(256 + 64);
  EXPECT_NEAR(some_keys, all_keys, 0.2 * all_keys);
  EXPECT_NEAR(some_values, all_values, 0.5 * all_values);
}

}  // namespace
}  // namespace oscar::calibrate

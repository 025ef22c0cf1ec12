// Caches that follow an artefact: the key mean by position, and the model that it must fit.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <random>

#include "calibrate/methods.h"
#include "graph_test_support.h"
#include "log.h"
#include "report.h"

namespace oscar::ggml_plugin {
namespace {

// A data-free artefact with a key mean from before RoPE, far from zero, as Qwen2.5's first layer
// has it.
Artefact with_mean(const BenchShape& shape, float rope_base) {
  const calibrate::LayerShape layer{shape.num_q_heads, shape.num_kv_heads, shape.head_dim_k,
                                    shape.head_dim_v};
  const ModelFingerprint model{
      "llama", 1, shape.num_q_heads, shape.num_kv_heads, shape.head_dim_k, shape.head_dim_v, ""};
  Artefact artefact = calibrate::make_data_free(Method::kQuarot, model, {{0, layer}});
  RopeSpec rope;
  for (int f = 0; f < shape.head_dim_k / 2; ++f) {
    rope.inv_freq.push_back(
        static_cast<float>(std::pow(double{rope_base}, -2.0 * f / shape.head_dim_k)));
  }
  artefact.ropes = {rope};
  artefact.layers[0].rope = 0;
  std::mt19937 random(41);
  std::normal_distribution<float> normal;
  artefact.layers[0].k_mean.resize(shape.num_kv_heads * shape.head_dim_k);
  for (float& value : artefact.layers[0].k_mean) value = 20 * normal(random);
  return artefact;
}

class ArtefactGraph : public testing::Test {
 protected:
  ~ArtefactGraph() override { std::remove(path_.c_str()); }
  std::string spec(const Artefact& artefact) {
    save_artefact(artefact, path_);
    return path_ + ":sink=0,recent=0";
  }

  std::string path_ =
      testing::TempDir() + "oscar_graph_" + std::to_string(::getpid()) + ".safetensors";
};

// Keys that are the rotated mean plus noise: with the mean taken out by position the codes hold the
// noise alone, so decoded keys are as near as the noise's step; and attention over the codes is
// that over the decoded keys.
TEST_F(ArtefactGraph, KeyMeanFollowsThePositions) {
  BenchShape shape;
  const Artefact artefact = with_mean(shape, 10000);
  const RopeTable table(artefact.ropes[0], 1024);
  GraphBench bench(spec(artefact), shape);
  ASSERT_TRUE(bench.ok()) << take_last_error();
  Step step = causal_step(shape, 0, 90, 42);
  for (std::size_t token = 0; token < 90; ++token) {
    step.positions[token] += 500;
    for (int head = 0; head < shape.num_kv_heads; ++head) {
      std::vector<float> mean(artefact.layers[0].k_mean.begin() + head * shape.head_dim_k,
                              artefact.layers[0].k_mean.begin() + (head + 1) * shape.head_dim_k);
      table.rotate(mean.data(), step.positions[token]);
      for (int d = 0; d < shape.head_dim_k; ++d) {
        step.k[(token * shape.num_kv_heads + head) * shape.head_dim_k + d] += mean[d];
      }
    }
  }
  step.scale = 0.01f;  // the mean's logits are large
  std::vector<float> out;
  ASSERT_EQ(bench.run(step, &out), GGML_STATUS_SUCCESS) << take_last_error();
  const std::vector<float> keys = bench.decoded(bench.keys(), shape.kv_size);
  double error = 0;
  for (std::size_t i = 0; i < step.k.size(); ++i) error += std::pow(double{keys[i]} - step.k[i], 2);
  // Min-max codes of a Gaussian row of 64: a step near 1.6, so a squared error near 1.6²/12.
  // Without the mean it would be 400 times it.
  EXPECT_LT(error / static_cast<double>(step.k.size()), 0.5);
  const std::vector<double> reference =
      reference_attention(shape, step, keys, bench.decoded(bench.values(), shape.kv_size));
  // decoded() rounds keys of the order of 60 to F16 (2^-11): 0.03·|q| in a dot, times the scale
  // 0.01, over 64 channels.
  for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], reference[i], 2e-2);
}

TEST_F(ArtefactGraph, AnotherRotationIsRefused) {
  BenchShape shape;
  GraphBench bench(spec(with_mean(shape, 500000)), shape);
  EXPECT_EQ(bench.run(causal_step(shape, 0, 2, 43), nullptr), GGML_STATUS_ALLOC_FAILED);
  EXPECT_NE(std::string(take_last_error()).find("layer 0: RoPE frequency 1 is"), std::string::npos);
}

TEST_F(ArtefactGraph, KeysWithoutRopeAreRefused) {
  BenchShape shape;
  GraphBench bench(spec(with_mean(shape, 10000)), shape);
  Step step = causal_step(shape, 0, 2, 44);
  step.positions.clear();
  EXPECT_EQ(bench.run(step, nullptr), GGML_STATUS_ALLOC_FAILED);
  EXPECT_NE(std::string(take_last_error()).find("no rotation (ROPE) is computed for its keys"),
            std::string::npos);
}

TEST_F(ArtefactGraph, AnotherModelIsRefused) {
  BenchShape shape;
  const Artefact artefact = with_mean(shape, 10000);
  BenchShape other = shape;
  other.num_kv_heads = 1;
  other.head_dim_k = other.head_dim_v = 128;
  {
    GraphBench bench(spec(artefact), other);
    EXPECT_EQ(bench.run(causal_step(other, 0, 2, 45), nullptr), GGML_STATUS_ALLOC_FAILED);
    EXPECT_NE(std::string(take_last_error())
                  .find("layer 0: the model has num_kv_heads 1, the artefact was made for 2"),
              std::string::npos);
  }
  other = shape;
  other.layers = {0, 1};
  GraphBench bench(spec(artefact), other);
  EXPECT_EQ(bench.run(causal_step(other, 0, 2, 46), nullptr), GGML_STATUS_ALLOC_FAILED);
  EXPECT_NE(std::string(take_last_error())
                .find("layer 1: the artefact, made for 1 layers, has none of this number"),
            std::string::npos);
}

// A bit budget: layers of one cache with bits of their own, exact ones among them. Each layer's
// attention is that over its decoded rows, and the report counts what is stored.
TEST_F(ArtefactGraph, LayersHaveBitsOfTheirOwn) {
  BenchShape shape;
  shape.layers = {0, 1, 2};
  const calibrate::LayerShape layer{shape.num_q_heads, shape.num_kv_heads, shape.head_dim_k,
                                    shape.head_dim_v};
  const ModelFingerprint model{
      "llama", 3, shape.num_q_heads, shape.num_kv_heads, shape.head_dim_k, shape.head_dim_v, ""};
  Artefact artefact =
      calibrate::make_data_free(Method::kQuarot, model, {{0, layer}, {1, layer}, {2, layer}});
  const int bits[3][2] = {{3, 2}, {2, 4}, {16, 16}};
  for (int i = 0; i < 3; ++i) {
    artefact.layers[i].k_bits = bits[i][0];
    artefact.layers[i].v_bits = bits[i][1];
  }
  GraphBench bench(spec(artefact), shape);
  ASSERT_TRUE(bench.ok()) << take_last_error();
  double errors[3][2] = {};
  for (std::size_t i = 0; i < 3; ++i) {
    const Step step = causal_step(shape, 0, 90, 50 + static_cast<unsigned>(i));
    std::vector<float> out;
    ASSERT_EQ(bench.run(step, &out, i), GGML_STATUS_SUCCESS) << take_last_error();
    const std::vector<float> keys = bench.decoded(bench.keys(i), shape.kv_size);
    const std::vector<float> values = bench.decoded(bench.values(i), shape.kv_size);
    for (std::size_t at = 0; at < step.k.size(); ++at) {
      errors[i][0] += std::pow(double{keys[at]} - step.k[at], 2);
      errors[i][1] += std::pow(double{values[at]} - step.v[at], 2);
    }
    const std::vector<double> reference = reference_attention(shape, step, keys, values);
    // decoded() rounds to F16: 2^-11 of values below 4, and logits of 64 such products.
    for (std::size_t at = 0; at < out.size(); ++at) ASSERT_NEAR(out[at], reference[at], 5e-3);
  }
  // Each bit more halves the step, so it quarters the squared error; BF16 leaves next to nothing.
  EXPECT_LT(errors[0][0], 0.4 * errors[1][0]);
  EXPECT_LT(errors[1][1], 0.15 * errors[0][1]);
  EXPECT_LT(errors[2][0], 1e-3 * errors[0][0]);
  EXPECT_LT(errors[2][1], 1e-3 * errors[1][1]);
  Report result;
  ASSERT_EQ(report(&result), 0);
  // Scale and zero point are 32 bits for 64 values.
  EXPECT_DOUBLE_EQ(result.code_bits, (3.5 + 2.5 + 2.5 + 4.5 + 16 + 16) / 6);
}

// What calibration sees: every token once, the rotation, and the mean of the keys turned back.
TEST(Collecting, FeedsKeysValuesAndQueries) {
  BenchShape shape;
  calibrate::Collector collector{calibrate::CollectorOptions()};
  GraphBench bench("naive:k16v16", shape);
  set_collector(&collector);
  ASSERT_EQ(bench.run(causal_step(shape, 0, 30, 47), nullptr), GGML_STATUS_SUCCESS)
      << take_last_error();
  ASSERT_EQ(bench.run(causal_step(shape, 30, 5, 48), nullptr), GGML_STATUS_SUCCESS)
      << take_last_error();
  set_collector(nullptr);
  const calibrate::Statistics& statistics = collector.statistics();
  ASSERT_EQ(statistics.layers.size(), 1u);
  const calibrate::LayerStatistics& layer = statistics.layers.begin()->second;
  EXPECT_EQ(layer.rope, 0);
  EXPECT_EQ(layer.attention_scale, 0.125f);
  ASSERT_EQ(layer.heads.size(), 2u);
  for (const calibrate::HeadStatistics& head : layer.heads) {
    EXPECT_EQ(head.num_tokens, 35);
    EXPECT_EQ(head.num_queries, 70);
  }
  EXPECT_EQ(layer.sample.key_positions.size(), 35u);
  ASSERT_EQ(statistics.ropes.size(), 1u);
  EXPECT_EQ(statistics.ropes[0].num_pairs(), 32);
  EXPECT_EQ(statistics.num_non_finite, 0);
}

}  // namespace
}  // namespace oscar::ggml_plugin

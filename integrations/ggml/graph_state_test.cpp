// Shifts, saved rows, refusals and the report, on graphs without a model.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "graph_test_support.h"
#include "log.h"
#include "report.h"
#include "state_row.h"

namespace oscar::ggml_plugin {
namespace {

constexpr const char* kExact = "naive:k16v16";
constexpr const char* kCodes = "quarot:sink=0,recent=0";

// Exact keys turned by the shift are those of the new positions: RoPE in fp64, once more rounded to
// BF16 (2^-8 relative to the pair).
TEST(Shift, TurnsExactKeys) {
  BenchShape shape;
  GraphBench bench(kExact, shape);
  const Step step = causal_step(shape, 0, 40, 23);
  ASSERT_EQ(bench.run(step, nullptr), GGML_STATUS_SUCCESS);
  const std::vector<float> before = bench.decoded(bench.keys(), 40);
  std::vector<std::int32_t> deltas(shape.kv_size, 0);
  for (int cell = 20; cell < 40; ++cell) deltas[cell] = -12;
  ASSERT_EQ(bench.shift(deltas), GGML_STATUS_SUCCESS) << take_last_error();
  const std::vector<float> after = bench.decoded(bench.keys(), 40);
  const int dim = shape.head_dim_k;
  for (std::int64_t row = 0; row < 40 * shape.num_kv_heads; ++row) {
    const double delta = row / shape.num_kv_heads >= 20 ? -12 : 0;
    for (int f = 0; f < dim / 2; ++f) {
      const double angle = delta * std::pow(10000.0, -2.0 * f / dim);
      const double x = before[row * dim + f], y = before[row * dim + f + dim / 2];
      const double tolerance = std::hypot(x, y) / 256 + 1e-6;
      EXPECT_NEAR(after[row * dim + f], x * std::cos(angle) - y * std::sin(angle), tolerance);
      EXPECT_NEAR(after[row * dim + f + dim / 2], x * std::sin(angle) + y * std::cos(angle),
                  tolerance);
    }
  }
}

// Coded cells are encoded again at their new position; copies are turned exactly; cells that stay
// keep their bytes.
TEST(Shift, MovesPositionsAndCopies) {
  BenchShape shape;
  GraphBench bench("quarot:sink=4,recent=8", shape);
  ASSERT_EQ(bench.run(causal_step(shape, 0, 40, 24), nullptr), GGML_STATUS_SUCCESS);
  const auto before = bench.save(bench.keys(), 0, 20);
  std::vector<std::int32_t> deltas(shape.kv_size, 0);
  for (int cell = 20; cell < 40; ++cell) deltas[cell] = -12;
  ASSERT_EQ(bench.shift(deltas), GGML_STATUS_SUCCESS) << take_last_error();
  EXPECT_EQ(bench.save(bench.keys(), 0, 20), before);
  std::int32_t position;
  const auto moved = bench.save(bench.keys(), 20, 1);
  std::memcpy(&position, moved.data() + offsetof(StateRowHeader, position), sizeof position);
  EXPECT_EQ(position, 8);
  deltas.assign(shape.kv_size, -9);
  EXPECT_EQ(bench.shift(deltas), GGML_STATUS_FAILED);
  EXPECT_NE(std::string(take_last_error()).find("would move to -9"), std::string::npos);
}

// Saved rows bring back codes, position and copy: the restored cache computes what the old one
// does.
TEST(State, RestoredRowsComputeTheSame) {
  BenchShape shape;
  for (const char* spec : {kExact, kCodes, "quarot:k3v4,sink=0,recent=0"}) {
    std::vector<float> direct, restored;
    GraphBench bench(spec, shape), other(spec, shape);
    ASSERT_EQ(bench.run(causal_step(shape, 0, 40, 25), nullptr), GGML_STATUS_SUCCESS);
    ASSERT_EQ(other.run(causal_step(shape, 0, 2, 26), nullptr), GGML_STATUS_SUCCESS);
    const auto keys = bench.save(bench.keys(), 0, 41), values = bench.save(bench.values(), 0, 41);
    other.restore(other.keys(), 0, keys);
    other.restore(other.values(), 0, values);
    EXPECT_EQ(other.save(other.keys(), 0, 41), keys) << spec;
    EXPECT_EQ(other.save(other.values(), 0, 41), values) << spec;
    const Step next = causal_step(shape, 40, 3, 27);
    ASSERT_EQ(bench.run(next, &direct), GGML_STATUS_SUCCESS);
    ASSERT_EQ(other.run(next, &restored), GGML_STATUS_SUCCESS) << take_last_error();
    EXPECT_EQ(restored, direct) << spec;
  }
}

TEST(State, AnotherCacheRefusesAndStaysUsable) {
  BenchShape shape;
  GraphBench bench(kCodes, shape);
  ASSERT_EQ(bench.run(causal_step(shape, 0, 40, 28), nullptr), GGML_STATUS_SUCCESS);
  const auto rows = bench.save(bench.keys(), 0, 40);
  for (const char* spec : {kExact, "naive:sink=0,recent=0", "quarot:k3v2,sink=0,recent=0",
                           "quarot:sink=0,recent=1", "quarot:sink=0,recent=0,group=32"}) {
    GraphBench other(spec, shape);
    ASSERT_EQ(other.run(causal_step(shape, 0, 2, 29), nullptr), GGML_STATUS_SUCCESS);
    take_last_error();
    other.restore(other.keys(), 0, rows);
    const std::string said = take_last_error();
    EXPECT_NE(said.find("saved sequence refused at layer 0, keys"), std::string::npos)
        << spec << ": " << said;
    EXPECT_EQ(other.run(causal_step(shape, 40, 1, 30), nullptr), GGML_STATUS_FAILED) << spec;
    EXPECT_EQ(take_last_error(), said);
    std::vector<float> out;
    EXPECT_EQ(other.run(causal_step(shape, 0, 60, 31), &out), GGML_STATUS_SUCCESS)
        << "written again, the cells are good";
  }
}

TEST(Refusal, OneLineThatNamesTheThing) {
  const auto refused = [](const char* spec, const BenchShape& shape,
                          ggml_type type = GGML_TYPE_F16) {
    take_last_error();
    GraphBench bench(spec, shape, type);
    if (bench.ok()) {
      EXPECT_EQ(bench.run(causal_step(shape, 0, 2, 32), nullptr), GGML_STATUS_ALLOC_FAILED);
    }
    return std::string(take_last_error());
  };
  BenchShape shape;
  EXPECT_NE(refused("quarot", shape, GGML_TYPE_Q8_0).find("cache_k_l0 has type q8_0"),
            std::string::npos);
  shape.head_dim_k = shape.head_dim_v = 40;
  EXPECT_NE(refused("quarot", shape).find("layer 0: head size 40 is not supported"),
            std::string::npos);
  shape.head_dim_k = shape.head_dim_v = 64;
  shape.layers = {20, 21};
  EXPECT_NE(refused("quarot", shape).find("the KV cache of 20 layer(s) from layer 0 on"),
            std::string::npos);
  shape.layers = {0};
  EXPECT_NE(refused("quarot:group=48", shape).find("48"), std::string::npos);
}

TEST(Refusal, AttentionWithoutFlashAttention) {
  BenchShape shape;
  GraphBench bench("quarot", shape);
  ASSERT_TRUE(bench.ok());
  EXPECT_FALSE(bench.plans([](ggml_context* context, GraphBench* b) {
    ggml_tensor* q = ggml_new_tensor_2d(context, GGML_TYPE_F32, 128, 4);
    return ggml_mul_mat(context, ggml_view_2d(context, b->keys(), 128, 16, b->keys()->nb[1], 0), q);
  }));
  EXPECT_NE(std::string(take_last_error()).find("cache_k_l0 is used by MUL_MAT"),
            std::string::npos);
}

// A window of copies for every cell is an f16 cache, and the codes come on top.
TEST(Report, SaysWhenCopiesTakeMoreThanF16) {
  BenchShape shape;
  const auto said = [&shape](const char* spec) {
    GraphBench bench(spec, shape);
    testing::internal::CaptureStderr();
    EXPECT_EQ(bench.run(causal_step(shape, 0, 4, 34), nullptr), GGML_STATUS_SUCCESS);
    return testing::internal::GetCapturedStderr();
  };
  const std::string line = said("quarot:sink=64,recent=256");
  EXPECT_NE(line.find("an f16 cache 0.1 MiB: 128 of 128 cells have an exact copy"),
            std::string::npos)
      << line;
  for (const char* spec : {kCodes, kExact, "quarot:sink=4,recent=16"})
    EXPECT_EQ(said(spec).find("an f16 cache"), std::string::npos) << spec;
}

TEST(Report, CountsWhatIsStored) {
  BenchShape shape;
  GraphBench bench(kCodes, shape);
  Report result;
  EXPECT_EQ(report(&result), -1);
  ASSERT_EQ(bench.run(causal_step(shape, 0, 40, 33), nullptr), GGML_STATUS_SUCCESS);
  ASSERT_EQ(report(&result), 0);
  EXPECT_EQ(result.cells_used, 40u);
  EXPECT_EQ(result.kv_values_used, 40u * 256);
  EXPECT_EQ(result.bits_per_value, 2.5);  // 2 bits, scale and zero point of 16 bits for 64 values
  EXPECT_EQ(result.kv_bytes_allocated, 128u * 256 * 5 / 16);
  EXPECT_EQ(ggml_backend_buffer_get_size(bench.buffer()), result.kv_bytes_allocated);
}

}  // namespace
}  // namespace oscar::ggml_plugin

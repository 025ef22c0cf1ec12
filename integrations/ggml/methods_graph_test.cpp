// Methods in a layout of their own, through the device: attention over what is stored, sequences
// that share a cache, removals, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph_test_support.h"
#include "log.h"

namespace oscar::ggml_plugin {
namespace {

constexpr const char* kNoWindow = "sink=0,recent=0";

std::string spec_of(const std::string& method) {
  return method + (method.find(':') == std::string::npos ? ":" : ",") + kNoWindow;
}

void expect_near(const std::vector<float>& out, const std::vector<double>& reference,
                 const std::string& what) {
  ASSERT_EQ(out.size(), reference.size());
  double worst = 0;
  for (std::size_t i = 0; i < out.size(); ++i)
    worst = std::max(worst, std::abs(out[i] - reference[i]));
  EXPECT_LE(worst, 3e-3) << what;  // decoded() rounds to F16: 2^-11 of a value of a few units
}

std::vector<float> part(const std::vector<float>& rows, std::int64_t width, std::int64_t first,
                        std::int64_t count) {
  return {rows.begin() + first * width, rows.begin() + (first + count) * width};
}

class MethodsInTheDevice : public ::testing::TestWithParam<const char*> {};

TEST_P(MethodsInTheDevice, AttendWhatTheyStore) {
  for (const auto& [dim, heads, group] :
       {std::tuple{64, 3, 3}, {80, 1, 4}, {128, 2, 7}, {256, 1, 1}}) {
    BenchShape shape;
    shape.kv_size = 192;
    shape.num_kv_heads = heads;
    shape.num_q_heads = heads * group;
    shape.head_dim_k = shape.head_dim_v = dim;
    GraphBench bench(spec_of(GetParam()), shape);
    ASSERT_TRUE(bench.ok());
    std::vector<float> out;
    ASSERT_EQ(bench.run(causal_step(shape, 0, 70, 1), nullptr), GGML_STATUS_SUCCESS)
        << take_last_error();
    ASSERT_EQ(bench.run(causal_step(shape, 70, 61, 2), nullptr), GGML_STATUS_SUCCESS);
    const Step step = causal_step(shape, 131, 2, 3);
    ASSERT_EQ(bench.run(step, &out), GGML_STATUS_SUCCESS);
    expect_near(out,
                reference_attention(shape, step, bench.decoded(bench.keys(), shape.kv_size),
                                    bench.decoded(bench.values(), shape.kv_size)),
                std::string(GetParam()) + " at head size " + std::to_string(dim));
  }
}

// Two sequences in one stream, cell by cell: each has the rows that it has alone.
TEST_P(MethodsInTheDevice, SequencesThatShareACacheShareNoScales) {
  BenchShape shape;
  shape.kv_size = 320;
  const std::int64_t tokens = 140, width = std::int64_t{shape.num_kv_heads} * shape.head_dim_k;
  GraphBench alone(spec_of(GetParam()), shape), mixed(spec_of(GetParam()), shape);
  const Step whole = causal_step(shape, 0, tokens, 4);
  ASSERT_EQ(alone.run(whole, nullptr), GGML_STATUS_SUCCESS) << take_last_error();
  for (std::int64_t first = 0; first < tokens; first += 20) {
    Step step = causal_step(shape, 0, 40, 5);
    step.num_kv = 2 * (first + 20);
    step.mask.assign(40 * step.num_kv, -std::numeric_limits<float>::infinity());
    for (std::int64_t i = 0; i < 40; ++i) {
      const std::int64_t position = first + i / 2, sequence = i % 2;
      step.rows[i] = 2 * position + sequence;
      step.positions[i] = static_cast<std::int32_t>(position);
      for (std::int64_t seen = 0; seen <= position; ++seen)
        step.mask[i * step.num_kv + 2 * seen + sequence] = 0;
      // The second sequence is ten times as large, which would show in a shared scale.
      const float factor = sequence == 0 ? 1.0f : 10.0f;
      for (std::int64_t c = 0; c < width; ++c) {
        step.k[i * width + c] = factor * whole.k[position * width + c];
        step.v[i * width + c] = factor * whole.v[position * width + c];
      }
    }
    ASSERT_EQ(mixed.run(step, nullptr), GGML_STATUS_SUCCESS) << take_last_error();
  }
  const auto apart = alone.decoded(alone.keys(), tokens);
  const auto together = mixed.decoded(mixed.keys(), 2 * tokens);
  for (std::int64_t token = 0; token < tokens; ++token) {
    EXPECT_EQ(part(together, width, 2 * token, 1), part(apart, width, token, 1)) << token;
  }
}

// A removal is invisible; cells that are written again give up what they held, the others keep it.
TEST_P(MethodsInTheDevice, RemovedTokensLeaveTheOthersAsTheyWere) {
  BenchShape shape;
  shape.kv_size = 192;
  const std::int64_t width = std::int64_t{shape.num_kv_heads} * shape.head_dim_k;
  GraphBench bench(spec_of(GetParam()), shape);
  ASSERT_EQ(bench.run(causal_step(shape, 0, 150, 6), nullptr), GGML_STATUS_SUCCESS);
  const auto before = bench.decoded(bench.keys(), 150);
  ASSERT_EQ(bench.run(causal_step(shape, 140, 40, 7), nullptr), GGML_STATUS_SUCCESS)
      << take_last_error();
  // Groups that were full; the tokens behind them wait, and are coded with those that come anew.
  EXPECT_EQ(part(bench.decoded(bench.keys(), 180), width, 0, 128), part(before, width, 0, 128));
  std::vector<float> out;
  const Step step = causal_step(shape, 180, 1, 8);
  ASSERT_EQ(bench.run(step, &out), GGML_STATUS_SUCCESS);
  expect_near(out,
              reference_attention(shape, step, bench.decoded(bench.keys(), shape.kv_size),
                                  bench.decoded(bench.values(), shape.kv_size)),
              GetParam());
}

TEST_P(MethodsInTheDevice, StatesAndShiftsAreRefusedInOneLine) {
  BenchShape shape;
  GraphBench bench(spec_of(GetParam()), shape);
  ASSERT_EQ(bench.run(causal_step(shape, 0, 40, 9), nullptr), GGML_STATUS_SUCCESS);
  take_last_error();
  const auto rows = bench.save(bench.keys(), 0, 40);
  EXPECT_TRUE(std::all_of(rows.begin(), rows.end(), [](std::uint8_t b) { return b == 0xff; }));
  EXPECT_NE(std::string(take_last_error()).find("cannot be saved"), std::string::npos);
  EXPECT_EQ(bench.shift(std::vector<std::int32_t>(shape.kv_size, 5)), GGML_STATUS_FAILED);
  EXPECT_NE(std::string(take_last_error()).find("cannot be shifted"), std::string::npos);
  bench.restore(bench.keys(), 0, rows);
  const std::string said = take_last_error();
  EXPECT_NE(said.find("cannot be restored"), std::string::npos) << said;
  EXPECT_EQ(bench.run(causal_step(shape, 40, 1, 10), nullptr), GGML_STATUS_FAILED);
  EXPECT_EQ(take_last_error(), said);
  EXPECT_EQ(bench.run(causal_step(shape, 0, 60, 11), nullptr), GGML_STATUS_SUCCESS)
      << "written again, the cells are good";
}

// Sinks and recent tokens are exact here too: a window over everything hides the codes.
TEST_P(MethodsInTheDevice, WindowsAreExact) {
  BenchShape shape;
  const std::string method = GetParam();
  const std::string windowed =
      method + (method.find(':') == std::string::npos ? ":" : ",") + "sink=8,recent=96";
  GraphBench exact("naive:k16v16", shape), bench(windowed, shape);
  const Step step = causal_step(shape, 0, 96, 12);
  std::vector<float> expected, out;
  ASSERT_EQ(exact.run(step, &expected), GGML_STATUS_SUCCESS);
  ASSERT_EQ(bench.run(step, &out), GGML_STATUS_SUCCESS);
  for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 1e-4) << i;
}

INSTANTIATE_TEST_SUITE_P(Methods, MethodsInTheDevice,
                         ::testing::Values("kivi", "kivi:group=128", "omniscale", "kitty", "ott",
                                           "turboquant", "spinquant-had"),
                         [](const ::testing::TestParamInfo<const char*>& one) {
                           std::string name = one.param;
                           for (char& c : name) {
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace oscar::ggml_plugin

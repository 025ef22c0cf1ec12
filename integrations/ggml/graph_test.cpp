// The device's operations on graphs without a model, judged against fp64.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "base/bf16.h"
#include "graph_test_support.h"
#include "log.h"

namespace oscar::ggml_plugin {
namespace {

constexpr const char* kExact = "naive:k16v16";
constexpr const char* kCodes = "quarot:sink=0,recent=0";
// Keys, values and queries are of the order of 1 and exact in float; 64 terms a dot, so an error of
// 64·2^-24·8 in a logit and the same relative one in a weight: 3e-5, tripled.
constexpr double kFloatTolerance = 1e-4;

std::vector<float> bf16_rounded(std::vector<float> values) {
  for (float& value : values) value = bf16_to_float(bf16_from_float(value));
  return values;
}

void expect_near(const std::vector<float>& out, const std::vector<double>& reference,
                 double tolerance) {
  ASSERT_EQ(out.size(), reference.size());
  double worst = 0;
  for (std::size_t i = 0; i < out.size(); ++i)
    worst = std::max(worst, std::abs(out[i] - reference[i]));
  EXPECT_LE(worst, tolerance);
}

// Keys and values of one step over a fresh cache, in the order of cells, padded with zeros.
std::vector<float> by_cell(const BenchShape& shape, const Step& step,
                           const std::vector<float>& rows) {
  const std::int64_t width = std::ssize(rows) / std::ssize(step.rows);
  std::vector<float> cells(shape.kv_size * width, 0.0f);
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    std::copy_n(rows.begin() + i * width, width, cells.begin() + step.rows[i] * width);
  }
  return cells;
}

class ExactAttention : public testing::TestWithParam<int> {};

// Soft cap, ALiBi, sinks, no mask, several head sizes: exact keys and values against fp64.
TEST_P(ExactAttention, MatchesReference) {
  BenchShape shape;
  shape.num_q_heads = 6;  // no power of two: both of ALiBi's series
  shape.head_dim_v = GetParam() == 4 ? 96 : 64;
  GraphBench bench(kExact, shape);
  ASSERT_TRUE(bench.ok());
  Step step = causal_step(shape, 0, 70, 11);
  if (GetParam() == 1) step.soft_cap = 0.5f;
  if (GetParam() == 2) {
    step.max_bias = 8;
    for (std::int64_t query = 0; query < 70; ++query) {
      for (std::int64_t cell = 0; cell <= query; ++cell)
        step.mask[query * step.num_kv + cell] = static_cast<float>(cell - query);
    }
  }
  if (GetParam() == 3) step.sinks = {0.5f, -1, 2, 0, 3, -30};
  if (GetParam() == 5) {
    step.mask.clear();
    step.num_kv = 70;
  }
  std::vector<float> out;
  ASSERT_EQ(bench.run(step, &out), GGML_STATUS_SUCCESS) << take_last_error();
  expect_near(out,
              reference_attention(shape, step, by_cell(shape, step, bf16_rounded(step.k)),
                                  by_cell(shape, step, bf16_rounded(step.v))),
              kFloatTolerance);
}
INSTANTIATE_TEST_SUITE_P(Plain_SoftCap_Alibi_Sinks_WideValues_NoMask, ExactAttention,
                         testing::Range(0, 6));

// The codes mean what attention computes, in integers and in single precision: fp64 attention over
// the decoded cache (F16: 2^-11 relative a value).
TEST(Attention, CodesMatchReference) {
  for (const char* spec : {kCodes, "quarot:k3v2,sink=0,recent=0", "naive:k4v4,sink=0,recent=0",
                           "quarot:k2v16,sink=0,recent=0"}) {
    for (const char* path : {"", ",float"}) {
      BenchShape shape;
      GraphBench bench(std::string(spec) + path, shape);
      ASSERT_TRUE(bench.ok());
      const Step step = causal_step(shape, 0, 90, 12);
      std::vector<float> out;
      ASSERT_EQ(bench.run(step, &out), GGML_STATUS_SUCCESS) << take_last_error();
      SCOPED_TRACE(std::string(spec) + path);
      expect_near(out,
                  reference_attention(shape, step, bench.decoded(bench.keys(), shape.kv_size),
                                      bench.decoded(bench.values(), shape.kv_size)),
                  3e-3);
    }
  }
}

// With a window that covers everything the codes do not matter: exact, and across chunk borders
// too.
TEST(Attention, WindowIsExactAcrossChunks) {
  BenchShape shape;
  const Step whole = causal_step(shape, 0, 96, 13);
  const auto reference =
      reference_attention(shape, whole, by_cell(shape, whole, bf16_rounded(whole.k)),
                          by_cell(shape, whole, bf16_rounded(whole.v)));
  for (const std::int64_t chunk : {1, 7, 96}) {
    GraphBench bench("quarot:sink=8,recent=96", shape);
    std::vector<float> out;
    const std::int64_t q_width = shape.num_q_heads * shape.head_dim_k,
                       kv_width = shape.num_kv_heads * shape.head_dim_k;
    for (std::int64_t at = 0; at < 96; at += chunk) {
      const std::int64_t count = std::min<std::int64_t>(chunk, 96 - at);
      Step step = causal_step(shape, at, count, 0);
      step.q.assign(whole.q.begin() + at * q_width, whole.q.begin() + (at + count) * q_width);
      step.k.assign(whole.k.begin() + at * kv_width, whole.k.begin() + (at + count) * kv_width);
      step.v.assign(whole.v.begin() + at * kv_width, whole.v.begin() + (at + count) * kv_width);
      std::vector<float> part;
      ASSERT_EQ(bench.run(step, &part), GGML_STATUS_SUCCESS) << take_last_error();
      out.insert(out.end(), part.begin(), part.end());
    }
    expect_near(out, reference, kFloatTolerance);
  }
}

// A token's bytes are the same however it arrived, and for every thread count.
TEST(Encoding, BytesDoNotDependOnChunksOrThreads) {
  BenchShape shape;
  const Step whole = causal_step(shape, 0, 64, 14);
  std::vector<std::uint8_t> first_keys, first_values;
  for (const std::int64_t chunk : {64, 1, 7}) {
    GraphBench bench(kCodes, shape);
    const std::int64_t q_width = shape.num_q_heads * shape.head_dim_k,
                       kv_width = shape.num_kv_heads * shape.head_dim_k;
    for (std::int64_t at = 0; at < 64; at += chunk) {
      const std::int64_t count = std::min<std::int64_t>(chunk, 64 - at);
      Step step = causal_step(shape, at, count, 0);
      step.q.assign(whole.q.begin() + at * q_width, whole.q.begin() + (at + count) * q_width);
      step.k.assign(whole.k.begin() + at * kv_width, whole.k.begin() + (at + count) * kv_width);
      step.v.assign(whole.v.begin() + at * kv_width, whole.v.begin() + (at + count) * kv_width);
      ASSERT_EQ(bench.run(step, nullptr, 0, chunk == 7 ? 1 : 3), GGML_STATUS_SUCCESS)
          << take_last_error();
    }
    const auto keys = bench.save(bench.keys(), 0, 64), values = bench.save(bench.values(), 0, 64);
    if (first_keys.empty()) {
      first_keys = keys;
      first_values = values;
    }
    EXPECT_EQ(keys, first_keys) << "chunks of " << chunk;
    EXPECT_EQ(values, first_values) << "chunks of " << chunk;
  }
}

// Two streams of one graph compute what each computes alone.
TEST(Attention, StreamsOfOneGraph) {
  BenchShape shape;
  shape.num_streams = 3;
  shape.kv_size = 100;  // no multiple of a page
  const Step a = causal_step(shape, 0, 20, 15), b = causal_step(shape, 0, 20, 16);
  std::vector<float> out_a, out_b, out;
  BenchShape one = shape;
  one.num_streams = 1;
  {
    GraphBench bench("quarot:sink=2,recent=8", one);
    ASSERT_EQ(bench.run(a, &out_a), GGML_STATUS_SUCCESS);
  }
  {
    GraphBench bench("quarot:sink=2,recent=8", one);
    ASSERT_EQ(bench.run(b, &out_b), GGML_STATUS_SUCCESS);
  }
  Step both = a;
  both.num_streams = 2;
  both.first_stream = 1;
  for (auto& row : both.rows) row += shape.kv_size;
  for (const std::int64_t row : b.rows) both.rows.push_back(2 * shape.kv_size + row);
  const auto append = [](auto* to, const auto& from) {
    to->insert(to->end(), from.begin(), from.end());
  };
  append(&both.positions, b.positions);
  append(&both.q, b.q);
  append(&both.k, b.k);
  append(&both.v, b.v);
  append(&both.mask, b.mask);
  GraphBench bench("quarot:sink=2,recent=8", shape);
  ASSERT_EQ(bench.run(both, &out), GGML_STATUS_SUCCESS) << take_last_error();
  append(&out_a, out_b);
  EXPECT_EQ(out, out_a);
}

// B07: what was never written may hold anything.
TEST(Attention, PoisonedPagesChangeNothing) {
  for (const char* spec : {kExact, kCodes, "quarot:sink=4,recent=16"}) {
    for (const std::int64_t count : {1, 63, 64, 65}) {
      BenchShape shape;
      std::vector<float> clean, poisoned;
      GraphBench bench(spec, shape);
      ASSERT_EQ(bench.run(causal_step(shape, 0, count, 17), &clean), GGML_STATUS_SUCCESS);
      ggml_backend_buffer_clear(bench.buffer(), 0xff);
      ASSERT_EQ(bench.run(causal_step(shape, 0, count, 17), &poisoned), GGML_STATUS_SUCCESS);
      EXPECT_EQ(poisoned, clean) << spec << ", " << count << " tokens";
      for (const float value : poisoned) ASSERT_TRUE(std::isfinite(value));
    }
  }
}

// One line that names the layer; the cache serves the next graph.
TEST(Attention, NanInKeysOrValuesFailsTheGraph) {
  BenchShape shape;
  shape.layers = {0, 1};
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    GraphBench bench("quarot", shape);
    Step step = causal_step(shape, 0, 4, 18);
    step.k[200] = bad;
    EXPECT_EQ(bench.run(step, nullptr, 1), GGML_STATUS_FAILED);
    EXPECT_NE(std::string(take_last_error())
                  .find("layer 1: the model's keys hold NaN or Inf in 1 of 4 rows"),
              std::string::npos);
    step.k[200] = 0;
    step.v[0] = bad;
    EXPECT_EQ(bench.run(step, nullptr, 0), GGML_STATUS_FAILED);
    EXPECT_NE(std::string(take_last_error())
                  .find("layer 0: the model's values hold NaN or Inf in 1 of 4 rows"),
              std::string::npos);
    std::vector<float> out;
    EXPECT_EQ(bench.run(causal_step(shape, 0, 7, 18), &out, 0), GGML_STATUS_SUCCESS);
    for (const float value : out) ASSERT_TRUE(std::isfinite(value));
  }
}

// Layers that share one cache: every attention node of the graph sees the ubatch exactly, also the
// second.
TEST(Attention, SeveralReadersOfOneLayer) {
  BenchShape shape;
  std::vector<float> once, twice;
  {
    GraphBench bench("quarot:sink=2,recent=8", shape);
    ASSERT_EQ(bench.run(causal_step(shape, 0, 40, 19), nullptr), GGML_STATUS_SUCCESS);
    ASSERT_EQ(bench.run(causal_step(shape, 40, 20, 20), &once), GGML_STATUS_SUCCESS);
  }
  GraphBench bench("quarot:sink=2,recent=8", shape);
  for (const auto& [first, count, seed] : {std::tuple{0, 40, 19u}, std::tuple{40, 20, 20u}}) {
    Step step = causal_step(shape, first, count, seed);
    step.num_reads = 2;
    ASSERT_EQ(bench.run(step, &twice), GGML_STATUS_SUCCESS) << take_last_error();
  }
  EXPECT_EQ(twice, once);
}

// Without a ROPE node the positions follow from the mask: state rows name them.
TEST(Positions, FromTheMaskWhereNoRopeNamesThem) {
  BenchShape shape;
  GraphBench with_rope("quarot:sink=4,recent=8", shape), without("quarot:sink=4,recent=8", shape);
  std::vector<float> a, b;
  for (const auto& [first, count, seed] : {std::tuple{0, 30, 21u}, std::tuple{30, 5, 22u}}) {
    Step step = causal_step(shape, first, count, seed);
    ASSERT_EQ(with_rope.run(step, &a), GGML_STATUS_SUCCESS);
    step.positions.clear();
    ASSERT_EQ(without.run(step, &b), GGML_STATUS_SUCCESS);
  }
  EXPECT_EQ(a, b);
  EXPECT_EQ(with_rope.save(with_rope.keys(), 0, 40), without.save(without.keys(), 0, 40));
}

}  // namespace
}  // namespace oscar::ggml_plugin

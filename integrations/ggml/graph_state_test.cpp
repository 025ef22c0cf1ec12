// Shifts, saved rows, refusals and the report, on graphs without a model.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "cache_buffer.h"
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

// Bytes of a range that are memory by now.
std::uint64_t resident_bytes(std::span<const std::uint8_t> range) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(range.data()) / page * page;
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(range.data()) + range.size();
  std::vector<unsigned char> pages((end - begin + page - 1) / page);
  EXPECT_EQ(::mincore(reinterpret_cast<void*>(begin), end - begin, pages.data()), 0);
  return page * static_cast<std::uint64_t>(
                    std::count_if(pages.begin(), pages.end(), [](auto p) { return (p & 1) != 0; }));
}

// A public report's figures for 36 layers of 8 KV heads of 128, 2 bits with scale and zero point
// for 128 values, 320 exact tokens: what each token takes in one of the two forms. Here the exact
// ones have codes too (ADR 2), and a page is 64 tokens. What is reported is what is allocated.
TEST(Report, BytesOfAPublicReport) {
  constexpr std::uint64_t kCodeBytes = 36 * 2 * 8 * 36;  // of a token
  struct Case {
    std::int64_t tokens;
    std::uint64_t one_form;
  };
  for (const auto& [tokens, one_form] :
       {Case{300, 44236800}, {1024, 61784064}, {4096, 125485056}, {32768, 720027648}}) {
    BenchShape shape{.kv_size = tokens,
                     .num_q_heads = 8,
                     .num_kv_heads = 8,
                     .head_dim_k = 128,
                     .head_dim_v = 128};
    shape.layers.resize(36);
    std::iota(shape.layers.begin(), shape.layers.end(), 0);
    const std::uint64_t exact = std::min<std::int64_t>(tokens, 320);
    const std::uint64_t page_rest = (64 - tokens % 64) % 64;
    const std::uint64_t expected = one_form + kCodeBytes * (exact + page_rest);
    GraphBench bench("quarot:k2v2,group=128,sink=64,recent=256", shape);
    ASSERT_TRUE(bench.ok());
    // 300 tokens are written everywhere, of more than that one.
    const std::int64_t written = tokens == 300 ? tokens : 1;
    for (std::size_t layer = 0; layer < shape.layers.size(); ++layer) {
      ASSERT_EQ(bench.run(causal_step(shape, 0, written, 35), nullptr, layer, 1),
                GGML_STATUS_SUCCESS);
    }
    Report result;
    ASSERT_EQ(report(&result), 0);
    EXPECT_EQ(result.kv_bytes_allocated, expected) << tokens << " tokens";
    EXPECT_EQ(ggml_backend_buffer_get_size(bench.buffer()), expected);
    const auto& groups = LiveCaches::instance().all().front()->groups();
    ASSERT_EQ(groups.size(), 1u);
    // Behind them lies address space for the exact rows of one layer's batch, as long as the
    // context at most; of it only a batch's tokens become memory. Each of the 72 planes begins on a
    // page of the system, and so do the two blocks of copies.
    const std::uint64_t reserved = groups.front()->reserved().size();
    const std::uint64_t scratch = static_cast<std::uint64_t>(tokens) * 2 * 8 * 256;
    EXPECT_GE(reserved, expected + scratch) << tokens << " tokens";
    EXPECT_LT(reserved, expected + scratch + 74 * 4096) << tokens << " tokens";
    if (written < tokens) continue;
    EXPECT_EQ(result.kv_bytes_used, one_form + kCodeBytes * exact);
    const std::uint64_t resident = resident_bytes(groups.front()->reserved());
    std::printf("%lld tokens: %llu bytes used, %llu resident\n", static_cast<long long>(tokens),
                static_cast<unsigned long long>(result.kv_bytes_used),
                static_cast<unsigned long long>(resident));
    EXPECT_NEAR(static_cast<double>(resident), static_cast<double>(result.kv_bytes_used),
                0.05 * static_cast<double>(expected));
  }
}

}  // namespace
}  // namespace oscar::ggml_plugin

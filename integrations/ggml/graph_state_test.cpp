// Shifts, saved rows, refusals and the report, on graphs without a model.
#include <gtest/gtest.h>

#include <algorithm>
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

// One state: keys and values of every layer, in llama.cpp's order.
using SavedRows = std::vector<std::vector<std::uint8_t>>;
SavedRows save_all(GraphBench* bench, std::int64_t first_row, std::int64_t num_rows) {
  SavedRows rows;
  const std::size_t num_layers = bench->shape().layers.size();
  for (std::size_t l = 0; l < num_layers; ++l)
    rows.push_back(bench->save(bench->keys(l), first_row, num_rows));
  for (std::size_t l = 0; l < num_layers; ++l)
    rows.push_back(bench->save(bench->values(l), first_row, num_rows));
  return rows;
}

void restore_all(GraphBench* bench, std::int64_t first_row, const SavedRows& rows) {
  const std::size_t num_layers = bench->shape().layers.size();
  for (std::size_t l = 0; l < num_layers; ++l) bench->restore(bench->keys(l), first_row, rows[l]);
  for (std::size_t l = 0; l < num_layers; ++l)
    bench->restore(bench->values(l), first_row, rows[num_layers + l]);
}

// The same step for every layer, with data of its own.
void write_all(GraphBench* bench, std::int64_t first, std::int64_t count, unsigned seed) {
  for (std::size_t l = 0; l < bench->shape().layers.size(); ++l) {
    ASSERT_EQ(bench->run(causal_step(bench->shape(), first, count, seed + static_cast<unsigned>(l)),
                         nullptr, l),
              GGML_STATUS_SUCCESS)
        << take_last_error();
  }
}

struct Restored {
  const char* spec;
  int head_dim_k = 64, head_dim_v = 64, num_kv_heads = 2;
};

class RestoredOverAnother : public testing::TestWithParam<Restored> {};

// A cache that held something else computes after a restore what the saved one does: its copies and
// codes are all gone. Copies come back as block floats of at least 9 bits: |error| ≤ 2^-8 of a
// block's largest value, which is about 4 for these rows; a logit of 64 terms has 1/8 of
// 8·2^-6·2^-1 = 2^-4 at three deviations, so do the weights, and the values are of the order of 1.
TEST_P(RestoredOverAnother, ComputesTheSame) {
  const Restored& c = GetParam();
  BenchShape shape;
  shape.layers = {0, 1, 2};
  shape.head_dim_k = c.head_dim_k;
  shape.head_dim_v = c.head_dim_v;
  shape.num_kv_heads = c.num_kv_heads;
  GraphBench bench(c.spec, shape), other(c.spec, shape);
  write_all(&bench, 0, 40, 50);
  write_all(&other, 0, 60, 70);
  const SavedRows rows = save_all(&bench, 0, 40);
  restore_all(&other, 0, rows);
  for (std::size_t layer = 0; layer < 3; ++layer) {
    const Step next = causal_step(shape, 40, 3, 90 + static_cast<unsigned>(layer));
    std::vector<float> direct, restored;
    ASSERT_EQ(bench.run(next, &direct, layer), GGML_STATUS_SUCCESS);
    ASSERT_EQ(other.run(next, &restored, layer), GGML_STATUS_SUCCESS) << take_last_error();
    double worst = 0;
    for (std::size_t i = 0; i < direct.size(); ++i)
      worst = std::max(worst, std::abs(double{direct[i]} - restored[i]));
    EXPECT_LE(worst, 0x1p-4) << c.spec << ", layer " << layer;
  }
}
INSTANTIATE_TEST_SUITE_P(
    Specs, RestoredOverAnother,
    testing::Values(
        Restored{"quarot:k4v4,sink=4,recent=16"}, Restored{"quarot:k2v16,sink=4,recent=16"},
        Restored{"quarot:k3v16,sink=4,recent=16"}, Restored{"quarot:k4v16,sink=4,recent=16"},
        Restored{"quarot:k16v2,sink=4,recent=16"}, Restored{"quarot:k16v4,sink=0,recent=16"},
        Restored{"quarot:k4v16,sink=0,recent=64"}, Restored{"quarot:k4v16,sink=8,recent=0"},
        Restored{"quarot:k16v4,sink=8,recent=0"}, Restored{"quarot:k4v16,sink=0,recent=0"},
        Restored{"quarot:k16v4,sink=0,recent=0"}, Restored{"naive:k16v16"}));

// One side's rows may have no room for a copy: then the cell has none, not half of one.
TEST(State, ACopyWithoutRoomOnOneSideIsNoCopy) {
  BenchShape shape;
  shape.num_kv_heads = 1;
  shape.num_q_heads = 1;
  for (const bool narrow_values : {true, false}) {
    shape.head_dim_k = narrow_values ? 64 : 32;
    shape.head_dim_v = narrow_values ? 32 : 64;
    const char* const spec = "quarot:k4v4,float,sink=0,recent=64";
    GraphBench bench(spec, shape), other(spec, shape),
        codes("quarot:k4v4,float,sink=0,recent=0", shape);
    std::vector<float> restored, coded;
    write_all(&bench, 0, 40, 51);
    write_all(&other, 0, 60, 71);
    write_all(&codes, 0, 40, 51);
    restore_all(&other, 0, save_all(&bench, 0, 40));
    // The query's own token apart, which is attended exactly by one and by its codes by the other,
    // and hidden here.
    Step next = causal_step(shape, 40, 1, 91);
    next.mask[40] = -std::numeric_limits<float>::infinity();
    ASSERT_EQ(other.run(next, &restored), GGML_STATUS_SUCCESS) << take_last_error();
    ASSERT_EQ(codes.run(next, &coded), GGML_STATUS_SUCCESS) << take_last_error();
    ASSERT_EQ(restored.size(), coded.size());
    for (std::size_t i = 0; i < coded.size(); ++i) EXPECT_NEAR(restored[i], coded[i], 1e-5);
  }
}

// A hole in a state's file: zeros for some layers and sides of a cell, or for all. Nothing that the
// cache held before is attended; the graph fails with the reason.
TEST(State, RowsOfZerosAreRefusedWhereTheCellIsAttended) {
  BenchShape shape;
  shape.layers = {0, 1};
  for (const char* spec : {"quarot:k4v4,sink=4,recent=16", "quarot:k4v16,sink=4,recent=16",
                           "quarot:k16v4,sink=4,recent=16", "quarot:k2v2,sink=0,recent=0"}) {
    for (const unsigned hole : {1u, 2u, 4u, 8u, 3u, 12u, 15u}) {  // of K0 K1 V0 V1
      GraphBench bench(spec, shape), other(spec, shape);
      write_all(&bench, 0, 40, 52);
      write_all(&other, 0, 60, 72);
      SavedRows rows = save_all(&bench, 0, 40);
      for (unsigned i = 0; i < 4; ++i) {
        const std::size_t row_bytes = rows[i].size() / 40;
        if ((hole >> i & 1) != 0)
          std::fill_n(rows[i].begin() + 10 * row_bytes, 5 * row_bytes, std::uint8_t{0});
      }
      take_last_error();
      restore_all(&other, 0, rows);
      const std::string said = take_last_error();
      // An exact side may well hold zeros: it is the coded one that knows better.
      const bool exact_keys = std::string(spec).find("k16") != std::string::npos;
      const bool exact_values = std::string(spec).find("v16") != std::string::npos;
      const bool coded_hole = (hole & (exact_keys ? 12u : exact_values ? 3u : 15u)) != 0;
      EXPECT_EQ(said.find("saved sequence refused at layer ") != std::string::npos, coded_hole)
          << spec << ", hole " << hole << ": " << said;
      EXPECT_EQ(other.run(causal_step(shape, 40, 1, 92), nullptr, 1),
                coded_hole ? GGML_STATUS_FAILED : GGML_STATUS_SUCCESS)
          << spec << ", hole " << hole;
      EXPECT_EQ(take_last_error(), said);
      if (coded_hole) write_all(&other, 0, 60, 73);  // written again, the cells are good
    }
  }
}

// Rows of one cell from two states: each is whole, their positions differ.
TEST(State, LayersOfOneCellAgree) {
  BenchShape shape;
  shape.layers = {0, 1};
  GraphBench bench(kCodes, shape), other(kCodes, shape);
  write_all(&bench, 0, 40, 53);
  const SavedRows rows = save_all(&bench, 0, 10), later = save_all(&bench, 10, 10);
  for (std::size_t mixed = 1; mixed < rows.size(); ++mixed) {
    SavedRows both = rows;
    both[mixed] = later[mixed];
    write_all(&other, 0, 60, 74);
    take_last_error();
    restore_all(&other, 0, both);
    EXPECT_NE(std::string(take_last_error()).find("its position is 10, of the cell's other rows 0"),
              std::string::npos);
    EXPECT_EQ(other.run(causal_step(shape, 10, 1, 93), nullptr), GGML_STATUS_FAILED);
    take_last_error();
  }
}

// A restore that ends before the last layer leaves cells that nothing may attend.
TEST(State, CellsRestoredInPartAreNotAttended) {
  BenchShape shape;
  shape.layers = {0, 1};
  for (const char* spec : {kExact, kCodes, "quarot:sink=4,recent=16"}) {
    GraphBench bench(spec, shape), other(spec, shape);
    write_all(&bench, 0, 40, 54);
    write_all(&other, 0, 60, 75);
    const SavedRows rows = save_all(&bench, 0, 40);
    other.restore(other.keys(0), 0, rows[0]);
    other.restore(other.keys(1), 0, rows[1]);
    other.restore(other.values(0), 0, rows[2]);
    EXPECT_EQ(other.run(causal_step(shape, 40, 1, 94), nullptr, 1), GGML_STATUS_FAILED) << spec;
    EXPECT_NE(std::string(take_last_error()).find("restored in part"), std::string::npos);
    restore_all(&other, 0, rows);
    EXPECT_EQ(other.run(causal_step(shape, 40, 1, 94), nullptr, 1), GGML_STATUS_SUCCESS)
        << take_last_error();
  }
}

// Bytes that are no whole rows: what the cells held is gone, and nothing may attend them.
TEST(State, PartsOfRowsAreRefused) {
  BenchShape shape;
  for (const char* spec : {kExact, kCodes}) {
    GraphBench bench(spec, shape);
    write_all(&bench, 0, 40, 57);
    const std::size_t row_bytes = bench.keys()->nb[1];
    const std::vector<std::uint8_t> bytes(2 * row_bytes, 1);
    take_last_error();
    ggml_backend_tensor_set(bench.keys(), bytes.data(), 38 * row_bytes + 10, bytes.size() - 20);
    EXPECT_NE(std::string(take_last_error()).find("are not whole rows"), std::string::npos);
    EXPECT_EQ(bench.run(causal_step(shape, 40, 1, 95), nullptr), GGML_STATUS_FAILED) << spec;
    EXPECT_NE(std::string(take_last_error()).find("are not whole rows"), std::string::npos);
    EXPECT_EQ(bench.run(causal_step(shape, 38, 3, 95), nullptr), GGML_STATUS_SUCCESS) << spec;
  }
}

// Each refused restore is said, not the first alone.
TEST(State, EveryRefusedRestoreIsSaid) {
  BenchShape shape;
  GraphBench bench(kCodes, shape), other("naive:sink=0,recent=0", shape);
  write_all(&bench, 0, 40, 55);
  write_all(&other, 0, 2, 76);
  const SavedRows rows = save_all(&bench, 0, 40);
  for (int i = 0; i < 2; ++i) {
    take_last_error();
    restore_all(&other, 0, rows);
    EXPECT_NE(std::string(take_last_error()).find("another method"), std::string::npos) << i;
  }
}

// Exact rows come from a state without their position; a shift turns them all the same.
TEST(Shift, TurnsExactKeysOfARestoredState) {
  BenchShape shape;
  GraphBench bench(kExact, shape), other(kExact, shape);
  write_all(&bench, 0, 40, 56);
  write_all(&other, 0, 60, 77);
  restore_all(&other, 0, save_all(&bench, 0, 40));
  std::vector<std::int32_t> deltas(shape.kv_size, 0);
  for (int cell = 20; cell < 40; ++cell) deltas[cell] = -12;
  ASSERT_EQ(bench.shift(deltas), GGML_STATUS_SUCCESS) << take_last_error();
  ASSERT_EQ(other.shift(deltas), GGML_STATUS_SUCCESS) << take_last_error();
  EXPECT_EQ(other.decoded(other.keys(), 40), bench.decoded(bench.keys(), 40));
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

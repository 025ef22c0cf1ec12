// Cells that are restored over others: they hold what the state says, or are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "graph_test_support.h"
#include "log.h"

namespace oscar::ggml_plugin {
namespace {

constexpr const char* kExact = "naive:k16v16";
constexpr const char* kCodes = "quarot:sink=0,recent=0";

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

void PrintTo(const Restored& restored, std::ostream* out) { *out << restored.spec; }

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

}  // namespace
}  // namespace oscar::ggml_plugin

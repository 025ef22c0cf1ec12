// The rules of the cache for methods that code groups of tokens: encode once, truncate, fork.
#include "cache/group_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/aligned_buffer.h"
#include "base/test_files.h"
#include "methods/definition.h"
#include "sample.h"

namespace oscar::methods {
namespace {

const TestShape kShape{64, 2, 4};
constexpr std::int64_t kWidth = 128;

class GroupStoreTest : public ::testing::TestWithParam<const char*> {
 protected:
  GroupStoreTest()
      : keys_(sample(1, 400, kShape.kv_heads, kShape.head_dim)),
        values_(sample(2, 400, kShape.kv_heads, kShape.head_dim)) {}

  void append(cache::Cache* cache, cache::SequenceId sequence, std::int64_t first,
              std::int64_t count) {
    methods::append(cache, sequence, kShape, keys_, values_, first, count);
  }
  // Rows of tokens [first, last) of a cache that got all tokens at once.
  std::vector<float> untouched(std::int64_t first, std::int64_t last, bool keys) {
    const auto cache = make_cache(GetParam(), kShape);
    const auto sequence = cache->create_sequence();
    append(cache.get(), sequence, 0, last);
    return part(decoded(*cache, sequence, keys), first, last);
  }
  static std::vector<float> part(const std::vector<float>& rows, std::int64_t first,
                                 std::int64_t last) {
    return {rows.begin() + first * kWidth, rows.begin() + last * kWidth};
  }

  std::vector<float> keys_, values_;
};

TEST_P(GroupStoreTest, RowsDoNotDependOnChunks) {
  const auto cache = make_cache(GetParam(), kShape);
  const auto sequence = cache->create_sequence();
  for (std::int64_t first = 0, size = 1; first < 200; first += size, size = 1 + first % 29)
    append(cache.get(), sequence, first, std::min<std::int64_t>(size, 200 - first));
  EXPECT_EQ(decoded(*cache, sequence, true), untouched(0, 200, true));
  EXPECT_EQ(decoded(*cache, sequence, false), untouched(0, 200, false));
}

// What stays keeps its rows; behind the next multiple of any group everything is as if nothing had
// been cut.
TEST_P(GroupStoreTest, TruncatedSequencesKeepTheirRows) {
  for (const std::int64_t kept : {0, 1, 31, 40, 64, 100, 128, 150, 199, 200}) {
    const auto cache = make_cache(GetParam(), kShape);
    const auto sequence = cache->create_sequence();
    append(cache.get(), sequence, 0, 200);
    const std::vector<float> before = decoded(*cache, sequence, true);
    cache->truncate(sequence, kept);
    EXPECT_EQ(decoded(*cache, sequence, true), part(before, 0, kept)) << kept;
    append(cache.get(), sequence, kept, 400 - kept);
    const std::vector<float> after = decoded(*cache, sequence, true);
    EXPECT_EQ(part(after, 0, kept / 128 * 128), part(untouched(0, 400, true), 0, kept / 128 * 128));
    const std::int64_t afresh = (kept + 127) / 128 * 128;
    EXPECT_EQ(part(after, afresh, 400), untouched(afresh, 400, true)) << kept;
  }
}

TEST_P(GroupStoreTest, ForksShareRowsAndGoTheirOwnWays) {
  const auto cache = make_cache(GetParam(), kShape, 32, 3);
  const auto first = cache->create_sequence();
  append(cache.get(), first, 0, 150);
  const auto second = cache->fork(first), third = cache->fork(first);
  append(cache.get(), first, 150, 100);
  append(cache.get(), second, 150, 250);
  const std::vector<float> whole = untouched(0, 400, true);
  for (const bool keys : {true, false}) {
    EXPECT_EQ(decoded(*cache, first, keys), untouched(0, 250, keys));
    EXPECT_EQ(decoded(*cache, third, keys), untouched(0, 150, keys));
    EXPECT_EQ(part(decoded(*cache, second, keys), 0, 128), part(untouched(0, 400, keys), 0, 128));
    EXPECT_EQ(part(decoded(*cache, second, keys), 256, 400), untouched(256, 400, keys));
  }
  cache->free_sequence(first);
  cache->free_sequence(second);
  EXPECT_EQ(decoded(*cache, third, true), untouched(0, 150, true));
  cache->free_sequence(third);
  const auto again = cache->create_sequence();
  append(cache.get(), again, 0, 400);
  EXPECT_EQ(decoded(*cache, again, true), whole);
}

// Rows that wait are those of BF16, and a group's codes never change once it is full.
TEST_P(GroupStoreTest, EncodesOnce) {
  const auto cache = make_cache(GetParam(), kShape);
  const auto sequence = cache->create_sequence();
  std::vector<float> before;
  for (std::int64_t token = 0; token < 300; ++token) {
    append(cache.get(), sequence, token, 1);
    if (token % 50 != 49) continue;
    const std::vector<float> now = decoded(*cache, sequence, true);
    const std::int64_t coded = (token + 1 - 50) / 128 * 128;
    EXPECT_EQ(part(now, 0, coded), part(before.empty() ? now : before, 0, coded)) << token;
    before = now;
  }
}

TEST_P(GroupStoreTest, RowsOfNaNAreZerosAndSaid) {
  const auto cache = make_cache(GetParam(), kShape);
  const auto sequence = cache->create_sequence();
  std::vector<float> keys(keys_.begin(), keys_.begin() + kWidth);
  keys[7] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_TRUE(cache->begin_append(sequence, 1));
  EXPECT_FALSE(cache->append_layer(sequence, 0, {keys.data(), 1, kWidth, 64},
                                   {values_.data(), 1, kWidth, 64}));
  for (const float x : decoded(*cache, sequence, true)) EXPECT_LT(std::abs(x), 1e-3f);
}

INSTANTIATE_TEST_SUITE_P(Methods, GroupStoreTest,
                         ::testing::Values("kivi", "kivi:group=128", "omniscale:group=64",
                                           "turboquant", "spinquant-had", "kitty", "ott",
                                           "rotatekv"),
                         [](const ::testing::TestParamInfo<const char*>& one) {
                           std::string name = one.param;
                           for (char& c : name) {
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           }
                           return name;
                         });

// The store alone: more sequences than room, and beginnings that nobody frees.
class KiviStore {
 public:
  KiviStore(std::int64_t num_cells, std::int64_t num_sequences)
      : artefact_(artefact_of("kivi", kShape)),
        codec_(artefact_, artefact_.layers[0], nullptr, kernels::selected_kernel_set()),
        memory_(static_cast<std::uint64_t>(
            cache::store_bytes(*codec_.key_side().coder, num_cells, num_sequences))),
        store_(*codec_.key_side().coder, num_cells, num_sequences, memory_.data()),
        rows_(sample(1, 64, kShape.kv_heads, kShape.head_dim)) {}

  void write(std::int64_t cell, std::int64_t before, std::int32_t position) {
    store_.write(codec_.key_side(), {rows_.data() + position % 64 * kWidth, 1, kWidth, 64},
                 {&cell, 1}, {&before, 1}, &position, 1);
  }
  std::vector<float> read(std::int64_t cell) const {
    std::vector<float> row(kWidth);
    const std::int32_t position = 0;
    store_.read(codec_.key_side(), cell, 1, &position, row.data());
    return row;
  }
  cache::GroupStore& store() { return store_; }
  const std::vector<float>& rows() const { return rows_; }

 private:
  Artefact artefact_;
  cache::LayerCodec codec_;
  AlignedBuffer<std::uint8_t> memory_;
  cache::GroupStore store_;
  std::vector<float> rows_;
};

TEST(GroupStore, SequencesThatInterleaveHaveGroupsOfTheirOwn) {
  KiviStore apart(128, 2), mixed(128, 2);
  for (int i = 0; i < 40; ++i) apart.write(i, i - 1, i);
  for (int i = 0; i < 40; ++i) {
    mixed.write(2 * i, i == 0 ? -1 : 2 * i - 2, i);
    mixed.write(2 * i + 1, i == 0 ? -1 : 2 * i - 1, i);
  }
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(mixed.read(2 * i), apart.read(i)) << i;
    EXPECT_EQ(mixed.read(2 * i + 1), apart.read(i)) << i;
  }
  EXPECT_EQ(mixed.store().used_bytes(), 2 * apart.store().used_bytes());
}

// The group that waited longest is coded as short as it is; its rows stay near what they were.
TEST(GroupStore, MoreSequencesThanRoomEndGroupsEarly) {
  KiviStore store(256, 1);
  for (int i = 0; i < 20; ++i) {
    store.write(5 * i, -1, 64 * i);
    EXPECT_TRUE(store.store().holds(5 * i));
  }
  const std::vector<float> coded = store.read(0);  // one token alone: its own minimum, exactly
  for (int i = 0; i < kWidth; ++i)
    EXPECT_NEAR(coded[i], store.rows()[i], 0x1p-8 * std::abs(store.rows()[i]) + 1e-6) << i;
  EXPECT_EQ(store.store().coded_place(0).offset, 0);
  EXPECT_EQ(store.store().coded_place(95).offset, -1);  // the last one waits
}

TEST(GroupStore, AWrittenCellGivesUpItsPlaceAndTheGroupIsFreeAgain) {
  KiviStore store(64, 1);
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 64; ++i) store.write(i, i - 1, i);
  }
  EXPECT_EQ(store.store().used_bytes(), 2u * (32 * kWidth / 4 + 4 * kWidth));
  store.store().clear();
  EXPECT_EQ(store.store().used_bytes(), 0u);
}

TEST(GroupStore, TooManyBeginningsAreRefusedInOneLine) {
  KiviStore store(4096, 1);
  expect_error(ErrorCode::kUnsupported, {"groups of 32 tokens", "truncated"}, [&] {
    for (int cell = 0; cell < 4096; ++cell) store.write(cell, -1, 0);
  });
  store.store().clear();
  for (int i = 0; i < 64; ++i) store.write(i, i - 1, i);
  EXPECT_EQ(store.store().coded_place(63).offset, 31);
}

TEST(GroupStore, MethodsRefuseWhatTheyCannotDo) {
  expect_error(ErrorCode::kInvalidArgument, {"kivi", "16 bits", "2, 3, 4"},
               [] { artefact_of("kivi:k16v2", kShape); });
  expect_error(ErrorCode::kInvalidArgument, {"kivi", "group=48", "32, 64, 128"},
               [] { artefact_of("kivi:group=48", kShape); });
  expect_error(ErrorCode::kInvalidArgument, {"unbiased", "turboquant"},
               [] { artefact_of("turboquant:unbiased", kShape); });
  expect_error(ErrorCode::kInvalidArgument, {"float", "kivi", "already"},
               [] { artefact_of("kivi:float", kShape); });
  expect_error(ErrorCode::kUnsupported, {"rotatekv", "head size 80", "power of two"}, [] {
    artefact_of("rotatekv", {80, 2, 4});
  });
  expect_error(ErrorCode::kInvalidArgument, {"kitty", "keys at 3 bits", "legal: 2"},
               [] { artefact_of("kitty:k3v2", kShape); });
  expect_error(ErrorCode::kCorrupt, {"oscar-plus", "keys", "affine", "legal: symmetric, trellis"},
               [] {
                 Artefact artefact = artefact_of("quarot", kShape);
                 check(Method::kOscarPlus, artefact);
               });
  expect_error(ErrorCode::kCorrupt, {"quarot", "values", "trellis", "legal: affine"}, [] {
    Artefact artefact = artefact_of("quarot", kShape);
    artefact.v_quant.codebook = Codebook::kTrellis;
    check(Method::kQuarot, artefact);
  });
  expect_error(ErrorCode::kUnsupported, {"kivi", "head size 40", "multiples of 16"}, [] {
    Artefact artefact = artefact_of("kivi", kShape);
    artefact.layers.front().head_dim_v = 40;
    make_value_coder(artefact, artefact.layers.front());
  });
  expect_error(ErrorCode::kInvalidArgument, {"no-hadamard", "kivi"},
               [] { artefact_of("kivi:no-hadamard", kShape); });
}

}  // namespace
}  // namespace oscar::methods

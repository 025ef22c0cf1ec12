// Every method against golden.txt, which NumPy wrote from the definitions (generate.py).
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

#include "attention/sequence_attention.h"
#include "cache/token_bytes.h"
#include "methods/definition.h"
#include "sample.h"

namespace oscar::methods {
namespace {

struct Case {
  std::string spec;
  TestShape shape;
  std::int64_t tokens;
  std::string hashes[4];  // key bytes, value bytes, key rows, value rows
  std::vector<float> outputs;
};

std::vector<Case> read_cases() {
  std::ifstream file(OSCAR_GOLDEN_FILE);
  std::vector<Case> cases;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string keyword, outputs;
    Case one;
    words >> keyword >> one.spec >> one.shape.head_dim >> one.shape.kv_heads >> one.shape.q_heads >>
        one.tokens;
    for (std::string& hash : one.hashes) words >> hash;
    words >> outputs;
    for (std::size_t at = 0; at + 8 <= outputs.size(); at += 8) {
      one.outputs.push_back(std::bit_cast<float>(
          static_cast<std::uint32_t>(std::stoul(outputs.substr(at, 8), nullptr, 16))));
    }
    cases.push_back(one);
  }
  return cases;
}

class Fnv {
 public:
  void add(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const std::uint8_t*>(data);
    for (std::size_t i = 0; i < size; ++i) state_ = (state_ ^ bytes[i]) * 0x100000001b3;
  }
  std::string hex() const {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(state_));
    return text;
  }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325;
};

std::string hash_rows(const std::vector<float>& rows) {
  Fnv fnv;
  fnv.add(rows.data(), rows.size() * sizeof(float));
  return fnv.hex();
}

// The bytes of every coded group, in the order of its tokens.
std::string hash_bytes(const cache::SequenceView& view, const cache::GroupStore& store) {
  Fnv fnv;
  for (std::int64_t token = 0; token < view.num_tokens; ++token) {
    const auto [bytes, offset] = store.coded_place(
        std::int64_t{view.block_table[token / kPageSize]} * kPageSize + token % kPageSize);
    if (offset == 0) fnv.add(bytes.data(), bytes.size());
  }
  return fnv.hex();
}

// Packed sides: the bytes of each token, head after head.
std::string hash_token_bytes(const cache::Cache& cache, cache::SequenceId sequence, bool keys) {
  const cache::SequenceView view = cache.view(sequence, 0);
  const std::int64_t k_bytes = cache::token_row_bytes(view.k.layout),
                     v_bytes = cache::token_row_bytes(view.v.layout);
  Fnv fnv;
  for (std::int64_t token = 0; token < view.num_tokens; ++token) {
    const std::vector<std::uint8_t> bytes = cache.token_bytes(sequence, 0, token);
    for (std::int64_t at = keys ? 0 : k_bytes; at < std::ssize(bytes); at += k_bytes + v_bytes)
      fnv.add(&bytes[at], static_cast<std::size_t>(keys ? k_bytes : v_bytes));
  }
  return fnv.hex();
}

class GoldenTest : public ::testing::TestWithParam<Case> {};

TEST_P(GoldenTest, BytesRowsAndAttentionAreTheDefinitions) {
  const Case& golden = GetParam();
  const TestShape& shape = golden.shape;
  const auto keys = sample(1, golden.tokens, shape.kv_heads, shape.head_dim);
  const auto values = sample(2, golden.tokens, shape.kv_heads, shape.head_dim);
  auto queries = sample(3, 1, shape.q_heads, shape.head_dim);
  for (float& q : queries) q *= 0.5f;
  const auto cache = make_cache(golden.spec, shape);
  const cache::SequenceId sequence = cache->create_sequence();
  // In pieces that fit no group.
  for (std::int64_t first = 0, size = 1; first < golden.tokens;
       first += size, size = 7 + first % 37) {
    append(cache.get(), sequence, shape, keys, values, first,
           std::min(size, golden.tokens - first));
  }
  const cache::SequenceView view = cache->view(sequence, 0);
  if (view.k_store != nullptr) {
    EXPECT_EQ(hash_bytes(view, *view.k_store), golden.hashes[0]) << "key bytes";
    EXPECT_EQ(hash_bytes(view, *view.v_store), golden.hashes[1]) << "value bytes";
    EXPECT_EQ(hash_rows(decoded(*cache, sequence, true)), golden.hashes[2]) << "key rows";
    EXPECT_EQ(hash_rows(decoded(*cache, sequence, false)), golden.hashes[3]) << "value rows";
  } else {
    EXPECT_EQ(hash_token_bytes(*cache, sequence, true), golden.hashes[0]) << "key bytes";
    EXPECT_EQ(hash_token_bytes(*cache, sequence, false), golden.hashes[1]) << "value bytes";
  }

  std::vector<float> out(queries.size());
  attention::SequenceAttention attention(2);
  attention.attend(view, {.num_q_heads = shape.q_heads,
                          .num_queries = 1,
                          .q = queries.data(),
                          .out = out.data(),
                          .scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
                          .float_path = true});
  ASSERT_EQ(golden.outputs.size(), 16u);
  const std::size_t step = out.size() / 16;
  for (std::size_t i = 0; i < golden.outputs.size(); ++i) {
    // A logit is at most about 60, so its rounding changes weights by 60·head_dim·2^-24, and the
    // sums over channels and tokens of values up to 30 add no more than that again.
    const double tolerance = 2.0 * 30 * 60 * shape.head_dim * 0x1p-24;
    EXPECT_NEAR(out[i * step], golden.outputs[i], tolerance) << "output " << i * step;
  }
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  std::string name = info.param.spec + "_d" + std::to_string(info.param.shape.head_dim);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Methods, GoldenTest, ::testing::ValuesIn(read_cases()), case_name);

// Calibrated ones in pages are judged in src/calibrate and src/kernels.
TEST(Golden, CoversEveryOtherMethod) {
  const std::vector<Case> cases = read_cases();
  for (const Method method : all_methods()) {
    if (definition(method).packed() && definition(method).calibrated) continue;
    const std::string name = method_name(method);
    EXPECT_TRUE(std::any_of(cases.begin(), cases.end(), [&](const Case& one) {
      return one.spec.substr(0, one.spec.find(':')) == name;
    })) << name;
  }
}

}  // namespace
}  // namespace oscar::methods

#include "cache/cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "cache/test_artefact.h"

namespace oscar::cache::test {
namespace {

constexpr int kLayers = 2;
constexpr std::int64_t kTokens = 600;

LayerSpec spec() {
  return {.k_quant = {2, 64, Codebook::kSymmetric, ScaleFit::kUnbiased},
          .v_quant = {3, 32},
          .head_dim_v = 96};
}

// Rows of kTokens tokens in every layer; a token's rows depend on its index and a salt, not on how
// it is appended.
struct Text {
  std::vector<float> keys[kLayers], values[kLayers];
  explicit Text(std::uint64_t salt = 0) {
    Generator generator(11 + salt);
    for (int layer = 0; layer < kLayers; ++layer) {
      keys[layer] = gaussian(kTokens * 2 * 64, 1.0f, &generator);
      values[layer] = gaussian(kTokens * 2 * 96, 1.0f, &generator);
    }
  }
};

bool append(Cache* cache, SequenceId sequence, const Text& text, std::int64_t count) {
  const std::int64_t first = cache->num_tokens(sequence);
  if (!cache->begin_append(sequence, count)) return false;
  for (int layer = 0; layer < kLayers; ++layer) {
    EXPECT_TRUE(cache->append_layer(sequence, layer,
                                    {text.keys[layer].data() + first * 128, count, 128, 64},
                                    {text.values[layer].data() + first * 192, count, 192, 96}));
  }
  return true;
}

void append_all(Cache* cache, SequenceId sequence, const Text& text, std::int64_t chunk,
                std::int64_t until = kTokens) {
  while (cache->num_tokens(sequence) < until) {
    ASSERT_TRUE(
        append(cache, sequence, text, std::min(chunk, until - cache->num_tokens(sequence))));
  }
}

using Bytes = std::vector<std::vector<std::uint8_t>>;
Bytes all_bytes(const Cache& cache, SequenceId sequence) {
  Bytes bytes;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (std::int64_t token = 0; token < cache.num_tokens(sequence); ++token)
      bytes.push_back(cache.token_bytes(sequence, layer, token));
  }
  return bytes;
}

// Every sink and recent token has an exact copy, in a row of its own.
void expect_copies(const Cache& cache, SequenceId sequence, const Text& text,
                   std::int64_t at_least_recent) {
  for (int layer = 0; layer < kLayers; ++layer) {
    const SequenceView view = cache.view(sequence, layer);
    std::vector<std::int32_t> rows;
    for (std::int64_t token = 0; token < view.num_tokens; ++token) {
      const std::int32_t row = view.copy_slots[token];
      if (token < view.sink_tokens || token >= view.num_tokens - at_least_recent) {
        ASSERT_GE(row, 0) << "token " << token << " of " << view.num_tokens;
      }
      if (row < 0) continue;
      rows.push_back(row);
      for (int i = 0; i < 128; ++i)
        ASSERT_EQ(view.k_copies[std::int64_t{row} * 128 + i],
                  bf16_from_float(text.keys[layer][token * 128 + i]));
      for (int i = 0; i < 192; ++i)
        ASSERT_EQ(view.v_copies[std::int64_t{row} * 192 + i],
                  bf16_from_float(text.values[layer][token * 192 + i]));
    }
    std::sort(rows.begin(), rows.end());
    EXPECT_EQ(std::adjacent_find(rows.begin(), rows.end()), rows.end());
  }
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Cache, TokenBytesDoNotDependOnTheWayTheyArrived) {
  const Text text;
  Cache cache(make_artefact(spec(), kLayers),
              {.num_pages = 60, .max_sequences = 6, .max_append_tokens = kTokens});
  const SequenceId whole = cache.create_sequence();
  append_all(&cache, whole, text, kTokens);
  const Bytes bytes = all_bytes(cache, whole);
  expect_copies(cache, whole, text, 256 + kTokens);
  for (const std::int64_t chunk : {1, 7, 64, 512}) {
    const SequenceId sequence = cache.create_sequence();
    append_all(&cache, sequence, text, chunk);
    EXPECT_EQ(all_bytes(cache, sequence), bytes) << "chunks of " << chunk;
    expect_copies(cache, sequence, text, 256 + chunk);
    // Truncated in the middle of a page and filled again.
    cache.truncate(sequence, 333);
    append_all(&cache, sequence, text, 50);
    EXPECT_EQ(all_bytes(cache, sequence), bytes) << "refilled";
    cache.free_sequence(sequence);
  }
  Cache threaded(make_artefact(spec(), kLayers),
                 {.num_pages = 10, .max_append_tokens = kTokens, .num_threads = 3});
  const SequenceId sequence = threaded.create_sequence();
  append_all(&threaded, sequence, text, kTokens);
  EXPECT_EQ(all_bytes(threaded, sequence), bytes);
}

TEST(Cache, CopiesFollowEveryAppend) {
  const Text text;
  for (const auto& [sinks, recent, most] :
       {std::tuple{0, 1, 1}, {64, 256, 64}, {5, 3, 2}, {64, 0, 8}, {700, 700, 16}}) {
    Cache cache(make_artefact(spec(), kLayers), {.num_pages = 10,
                                                 .sink_tokens = sinks,
                                                 .recent_tokens = recent,
                                                 .max_append_tokens = most});
    const SequenceId sequence = cache.create_sequence();
    std::int64_t step = 0;
    while (cache.num_tokens(sequence) < 200) {
      const std::int64_t count = 1 + step++ % most;
      ASSERT_TRUE(append(&cache, sequence, text, count));
      // Also the oldest query of the append finds its recent tokens; none are kept where recent is
      // 0.
      expect_copies(cache, sequence, text, recent == 0 ? 0 : recent + count - 1);
    }
  }
}

TEST(Cache, ForksShareUntilTheyWrite) {
  const Text text, other(1);
  Cache cache(make_artefact(spec(), kLayers),
              {.num_pages = 8, .max_sequences = 3, .max_append_tokens = 128});
  const SequenceId first = cache.create_sequence();
  append_all(&cache, first, text, 100, 100);
  EXPECT_EQ(cache.num_free_pages(), 6);
  const Bytes bytes = all_bytes(cache, first);
  const SequenceId second = cache.fork(first);
  EXPECT_EQ(cache.num_free_pages(), 6);
  EXPECT_EQ(all_bytes(cache, second), bytes);
  expect_copies(cache, second, text, 100);

  ASSERT_TRUE(append(&cache, second, other, 10));  // copies the partial page
  EXPECT_EQ(cache.num_free_pages(), 5);
  EXPECT_EQ(all_bytes(cache, first), bytes);
  ASSERT_TRUE(append(&cache, first, text, 10));  // has its own by now
  EXPECT_EQ(cache.num_free_pages(), 5);
  EXPECT_NE(cache.token_bytes(first, 0, 105), cache.token_bytes(second, 0, 105));
  EXPECT_EQ(cache.token_bytes(first, 0, 99), cache.token_bytes(second, 0, 99));

  cache.truncate(first, 128 - 64);  // a page border: the next write needs no copy
  EXPECT_EQ(cache.num_free_pages(), 6);
  const SequenceId third = cache.fork(first);
  ASSERT_TRUE(append(&cache, third, text, 64));
  EXPECT_EQ(cache.num_free_pages(), 5);
  cache.free_sequence(first);
  cache.free_sequence(second);
  EXPECT_EQ(cache.num_free_pages(), 6);
  cache.free_sequence(third);
  EXPECT_EQ(cache.num_free_pages(), 8);
}

TEST(Cache, FullPoolChangesNothing) {
  const Text text;
  Cache cache(make_artefact(spec(), kLayers),
              {.num_pages = 2, .max_sequences = 2, .max_append_tokens = 128});
  const SequenceId sequence = cache.create_sequence();
  ASSERT_TRUE(append(&cache, sequence, text, 100));
  const Bytes bytes = all_bytes(cache, sequence);
  EXPECT_FALSE(cache.begin_append(sequence, 29));
  EXPECT_EQ(cache.num_tokens(sequence), 100);
  const SequenceId fork = cache.fork(sequence);
  EXPECT_FALSE(cache.begin_append(fork, 1));  // the partial page cannot be copied
  EXPECT_EQ(all_bytes(cache, fork), bytes);
  cache.free_sequence(sequence);
  EXPECT_TRUE(append(&cache, fork, text, 28));
}

TEST(Cache, BytesAreWhatIsReserved) {
  const Artefact artefact = make_artefact(spec(), kLayers);
  const Cache small(artefact, {.num_pages = 100, .sink_tokens = 0, .recent_tokens = 0});
  const Cache large(artefact, {.num_pages = 200, .sink_tokens = 0, .recent_tokens = 0});
  // K: 2 bits and one scale of 64 channels; V: 3 bits, scale and zero of 32 channels. A page's
  // bookkeeping: its two entries in the pool and one in the block table.
  const std::uint64_t page = 64 * kLayers * 2 * ((64 / 4 + 2) + (96 * 3 / 8 + 3 * 4));
  EXPECT_EQ(large.bytes() - small.bytes(), 100 * (page + 3 * sizeof(std::int32_t)));
  const Cache windows(artefact, {.num_pages = 100, .max_append_tokens = 512});
  const std::uint64_t rows = 64 + 256 + 512;
  EXPECT_EQ(windows.bytes() - small.bytes(),
            rows * kLayers * 2 * (64 + 96) * 2 + 6400 * sizeof(std::int32_t));
}

TEST(Cache, RefusesWhatDoesNotExistByName) {
  const Text text;
  Cache cache(make_artefact(spec(), kLayers), {.num_pages = 4, .max_append_tokens = 64});
  EXPECT_EQ(refusal([&] { cache.num_tokens(0); }),
            "cache: sequence is 0; it must be one that was created and not freed");
  const SequenceId sequence = cache.create_sequence();
  EXPECT_EQ(refusal([&] { cache.create_sequence(); }),
            "cache: all 1 sequences are in use; free one or raise max_sequences");
  EXPECT_EQ(refusal([&] { (void)cache.begin_append(sequence, 65); }),
            "cache: num_tokens to append is 65; it must be 0 to 64");
  ASSERT_TRUE(cache.begin_append(sequence, 2));
  EXPECT_EQ(refusal([&] { cache.view(sequence, 1); }),
            "cache: layer without its rows of the last append is 1; it must be given to "
            "append_layer first");
  EXPECT_EQ(refusal([&] { cache.append_layer(sequence, 2, {}, {}); }),
            "cache: layer is 2; it must be 0 to 1");
  EXPECT_EQ(refusal([&] {
              cache.append_layer(sequence, 0, {text.keys[0].data(), 3, 128, 64},
                                 {text.values[0].data(), 2, 192, 96});
            }),
            "cache: number of keys is 3; it must be 2, what begin_append reserved for the layer");
  EXPECT_NE(refusal([&] { cache.truncate(sequence, 0); }), "accepted");
  cache.free_sequence(sequence);
  EXPECT_EQ(refusal([&] { Cache(make_artefact(spec(), 1), {.num_pages = 0}); }),
            "cache: num_pages is 0; it must be 1 to 2147483647");
}

}  // namespace
}  // namespace oscar::cache::test

// Any order of append, fork, truncate and free keeps the pool's accounting and everybody's tokens.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>

#include "cache/cache.h"
#include "cache/test_artefact.h"

namespace oscar::cache::test {
namespace {

constexpr std::int64_t kPages = 8;
constexpr int kSequences = 4;
constexpr std::int64_t kMostTokens = 100;  // of one append

// What a sequence should hold: a label for every token.
using Model = std::map<SequenceId, std::vector<int>>;

// The row of a label: any two labels give other codes.
std::vector<float> row_of(int label) {
  Generator generator(label);
  return gaussian(32, 1.0f, &generator);
}

void append(Cache* cache, SequenceId sequence, const std::vector<int>& labels) {
  std::vector<float> rows;
  for (const int label : labels) {
    const std::vector<float> row = row_of(label);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  const Rows all{rows.data(), std::ssize(labels), 32, 32};
  RC_ASSERT(cache->append_layer(sequence, 0, all, all));
}

// Pages in use are those of some sequence, and no page is both free and used.
void check(const Cache& cache, const Model& model) {
  std::set<std::int32_t> used;
  for (const auto& [sequence, labels] : model) {
    RC_ASSERT(cache.num_tokens(sequence) == std::ssize(labels));
    const SequenceView view = cache.view(sequence, 0);
    used.insert(view.block_table, view.block_table + (labels.size() + kPageSize - 1) / kPageSize);
  }
  RC_ASSERT(cache.num_free_pages() + std::ssize(used) == kPages);
}

void check_tokens(const Cache& cache, const Model& model) {
  const LayerCodec& codec = cache.codec(0);
  for (const auto& [sequence, labels] : model) {
    const SequenceView view = cache.view(sequence, 0);
    for (std::size_t token = 0; token < labels.size(); ++token) {
      // 16-bit values say which token it is; a copy says the same.
      std::vector<float> decoded(32);
      const std::int64_t slot = std::int64_t{view.block_table[token / kPageSize]} * kPageSize +
                                static_cast<std::int64_t>(token) % kPageSize;
      codec.decode_value(slot, view.v, decoded.data());
      const std::vector<float> row = row_of(labels[token]);
      for (int d = 0; d < 32; ++d) RC_ASSERT(decoded[d] == bf16_to_float(bf16_from_float(row[d])));
      if (view.copy_slots[token] < 0) continue;
      for (int d = 0; d < 32; ++d)
        RC_ASSERT(view.v_copies[std::int64_t{view.copy_slots[token]} * 32 + d] ==
                  bf16_from_float(row[d]));
    }
  }
}

RC_GTEST_PROP(CacheProperty, AnyOrderOfOperationsKeepsTheAccounts, ()) {
  Cache cache(make_artefact({.k_quant = {2, 32},
                             .v_quant = {.bits = 16},
                             .mean = Mean::kNone,
                             .num_kv_heads = 1,
                             .head_dim_k = 32,
                             .head_dim_v = 32},
                            1),
              {.num_pages = kPages,
               .max_sequences = kSequences,
               .sink_tokens = 3,
               .recent_tokens = 5,
               .max_append_tokens = kMostTokens});
  Model model;
  int next_label = 0;
  const auto any_sequence = [&] {
    return std::next(model.begin(), *rc::gen::inRange<std::ptrdiff_t>(0, std::ssize(model)))->first;
  };
  const int num_steps = *rc::gen::inRange(0, 40);
  for (int step = 0; step < num_steps; ++step) {
    const int action = *rc::gen::weightedElement<int>({{2, 0}, {6, 1}, {2, 2}, {2, 3}, {1, 4}});
    if (action == 0 && std::ssize(model) < kSequences) {
      model[cache.create_sequence()] = {};
    } else if (action == 1 && !model.empty()) {
      const SequenceId sequence = any_sequence();
      std::vector<int> labels(*rc::gen::inRange<std::int64_t>(0, kMostTokens + 1));
      const std::int64_t free_before = cache.num_free_pages();
      if (cache.begin_append(sequence, std::ssize(labels))) {
        for (int& label : labels) label = next_label++;
        append(&cache, sequence, labels);
        model[sequence].insert(model[sequence].end(), labels.begin(), labels.end());
      } else {
        RC_ASSERT(cache.num_free_pages() == free_before);
      }
    } else if (action == 2 && !model.empty() && std::ssize(model) < kSequences) {
      const SequenceId sequence = any_sequence();
      const std::vector<int> labels = model[sequence];
      model[cache.fork(sequence)] = labels;
    } else if (action == 3 && !model.empty()) {
      const SequenceId sequence = any_sequence();
      const auto keep = *rc::gen::inRange<std::int64_t>(0, std::ssize(model[sequence]) + 1);
      cache.truncate(sequence, keep);
      model[sequence].resize(keep);
    } else if (action == 4 && !model.empty()) {
      const SequenceId sequence = any_sequence();
      cache.free_sequence(sequence);
      model.erase(sequence);
    }
    check(cache, model);
  }
  check_tokens(cache, model);
  for (const auto& [sequence, labels] : model) cache.free_sequence(sequence);
  RC_ASSERT(cache.num_free_pages() == kPages);
}

}  // namespace
}  // namespace oscar::cache::test

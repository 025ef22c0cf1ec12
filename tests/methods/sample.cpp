#include "sample.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "methods/definition.h"

namespace oscar::methods {
namespace {

constexpr std::int64_t kMaxAppend = 64;

std::uint64_t splitmix(std::uint64_t state) {
  std::uint64_t z = state + 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

}  // namespace

std::vector<float> sample(std::uint64_t seed, std::int64_t tokens, int heads, int dim) {
  std::vector<float> rows;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (int h = 0; h < heads; ++h) {
      for (int c = 0; c < dim; ++c) {
        const std::uint64_t z =
            splitmix((seed << 40) + (static_cast<std::uint64_t>(t) << 20) +
                     (static_cast<std::uint64_t>(h) << 10) + static_cast<std::uint64_t>(c));
        std::int64_t total = 0;
        for (int i = 0; i < 4; ++i) total += static_cast<std::int64_t>(z >> 16 * i & 0xffff);
        double value = static_cast<double>(total - 131070) / 37837.0;
        value = value * (c % 16 == 3 ? 6.0 : 1.0) + (c % 16 == 5 ? 4.0 : 0.0);
        rows.push_back(static_cast<float>(value * (t % 23 == 2 ? 0.0625 : 1.0)));
      }
    }
  }
  return rows;
}

Artefact artefact_of(const std::string& text, const TestShape& shape) {
  const KvSpec spec = parse_kv_spec(text);
  const ModelFingerprint model{"", 1, shape.q_heads, shape.kv_heads, shape.head_dim, shape.head_dim,
                               ""};
  Artefact artefact = calibrate::make_uncalibrated(
      spec.method, model, {{0, {shape.q_heads, shape.kv_heads, shape.head_dim, shape.head_dim}}});
  if (definition(spec.method).needs_rope) {
    RopeSpec rope;
    for (int i = 0; i < shape.head_dim / 2; ++i)
      rope.inv_freq.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / shape.head_dim)));
    artefact.ropes.push_back(rope);
    artefact.layers[0].rope = 0;
    artefact.layers[0].k_mean = sample(4, 1, shape.kv_heads, shape.head_dim);
  }
  calibrate::apply_kv_spec(spec, &artefact);
  return artefact;
}

std::unique_ptr<cache::Cache> make_cache(const std::string& text, const TestShape& shape,
                                         std::int64_t num_pages, int max_sequences) {
  const KvSpec spec = parse_kv_spec(text);
  cache::CacheOptions options;
  options.num_pages = num_pages;
  options.max_sequences = max_sequences;
  options.sink_tokens = text.find("sink=") == std::string::npos ? 0 : spec.sink_tokens;
  options.recent_tokens = text.find("recent=") == std::string::npos ? 0 : spec.recent_tokens;
  options.max_append_tokens = kMaxAppend;
  options.max_position = 1 << 16;
  return std::make_unique<cache::Cache>(artefact_of(text, shape), options);
}

void append(cache::Cache* cache, cache::SequenceId sequence, const TestShape& shape,
            const std::vector<float>& keys, const std::vector<float>& values, std::int64_t first,
            std::int64_t count) {
  const std::int64_t stride = std::int64_t{shape.kv_heads} * shape.head_dim;
  for (std::int64_t begin = first; begin < first + count; begin += kMaxAppend) {
    const std::int64_t part = std::min(kMaxAppend, first + count - begin);
    if (!cache->begin_append(sequence, part)) throw std::runtime_error("no pages");
    if (!cache->append_layer(sequence, 0,
                             {keys.data() + begin * stride, part, stride, shape.head_dim},
                             {values.data() + begin * stride, part, stride, shape.head_dim})) {
      throw std::runtime_error("not finite");
    }
  }
}

std::vector<float> decoded(const cache::Cache& cache, cache::SequenceId sequence, bool keys) {
  const cache::SequenceView view = cache.view(sequence, 0);
  const cache::SideCoder side = keys ? view.codec->key_side() : view.codec->value_side();
  const cache::GroupStore& store = keys ? *view.k_store : *view.v_store;
  const std::int64_t width = side.coder->row_values();
  std::vector<float> rows(static_cast<std::size_t>(view.num_tokens * width));
  for (std::int64_t token = 0; token < view.num_tokens; ++token) {
    const std::int64_t cell =
        std::int64_t{view.block_table[token / kPageSize]} * kPageSize + token % kPageSize;
    const auto position = static_cast<std::int32_t>(token);
    store.read(side, cell, 1, &position, rows.data() + token * width);
  }
  return rows;
}

}  // namespace oscar::methods

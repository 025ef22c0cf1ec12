// What the tests of methods share: the generator's rows (generate.py), and a cache made of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "calibrate/methods.h"
#include "format/kv_spec.h"

namespace oscar::methods {

struct TestShape {
  int head_dim = 64, kv_heads = 2, q_heads = 4;
};

// `sample` of generate.py: [tokens][heads][dim].
std::vector<float> sample(std::uint64_t seed, std::int64_t tokens, int heads, int dim);

// The artefact of one layer as --kv SPEC makes it.
Artefact artefact_of(const std::string& spec, const TestShape& shape);

// A cache of it, without exact copies unless the spec names a window.
std::unique_ptr<cache::Cache> make_cache(const std::string& spec, const TestShape& shape,
                                         std::int64_t num_pages = 8, int max_sequences = 1);

// Appends rows [first, first + count) of keys and values to layer 0.
void append(cache::Cache* cache, cache::SequenceId sequence, const TestShape& shape,
            const std::vector<float>& keys, const std::vector<float>& values, std::int64_t first,
            std::int64_t count);

// Decoded rows of the sequence's tokens before they are rotated back: [tokens][heads][dim].
std::vector<float> decoded(const cache::Cache& cache, cache::SequenceId sequence, bool keys);

}  // namespace oscar::methods

// Bytes that a cache tensor will need, asked before any graph has told how many heads its rows are
// split into.
//
// The head size comes from the artefact, or from a graph of an earlier dry run (llama.cpp's
// programs measure a model once before they load it); where neither is there, the most that a legal
// head size can need. The buffer's size is set right as soon as the head size is known, before the
// first token.
#pragma once

#include <cstdint>

#include "config.h"
#include "tensors.h"

namespace oscar::ggml_plugin {

// Of a root: its packed planes, and its layer's share of the exact copies.
std::uint64_t estimate_root_bytes(const Config& config, const ggml_tensor* root,
                                  const CacheName& name);

// A graph over a root of this name and row size was seen: heads of `head_dim`, `num_queries`
// queries.
void remember_shape(const ggml_tensor* root, int head_dim, std::int64_t num_queries);

}  // namespace oscar::ggml_plugin

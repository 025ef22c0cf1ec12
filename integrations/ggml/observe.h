// What the graphs tell before they run: head sizes, rotation, sequences; and what in them cannot be
// served.
#pragma once

#include <ggml-backend-impl.h>

#include <string>

namespace oscar::ggml_plugin {

// Called with every part of a graph that runs on our device, while it is planned. Fills CacheLayer,
// refuses caches, and asks ggml to keep the tensor of positions until the keys are written.
void observe_graph(ggml_cgraph* graph, ggml_backend_graph_optimize_params* params);

// A dry run or a live cache: whether the operation reads or writes a cache tensor of ours. All such
// operations are claimed, so that none is computed elsewhere on bytes that are not what they seem.
bool touches_cache(const ggml_tensor* op);

// "" when every layer of the model has its cache on this device, as far as can be told; otherwise
// one line.
std::string missing_layers();

// The operation writes or attends a KV cache that lies elsewhere (-nkvo, -ngl 0), and no other lies
// here, although the context was given this device. Nothing asks us then; so that it is not passed
// over, we claim such operations and refuse them when they run: the first token fails.
bool uses_cache_elsewhere(const ggml_tensor* op);

}  // namespace oscar::ggml_plugin

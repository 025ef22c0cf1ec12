// The operations that our device computes. All throw Error with one line; the graph fails with it.
#pragma once

#include <ggml-backend-impl.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/aligned_buffer.h"
#include "calibrate/collector.h"

namespace oscar::ggml_plugin {

// One per llama.cpp context.
struct OpContext {
  int num_threads = 1;
  AlignedBuffer<std::byte> workspace;
  AlignedBuffer<float> key_rows, value_rows;  // decoded, of methods without packed planes
  calibrate::Collector* collector = nullptr;
  std::vector<std::int32_t> copy_slots;  // of the cells that attention sees
};

// SET_ROWS into a cache: encodes the rows; the first of a graph opens the ubatch. `graph` is the
// part that holds the node.
void write_rows(const ggml_tensor* node, ggml_cgraph* graph, OpContext* context);

// FLASH_ATTN_EXT over a cache.
void attend(const ggml_tensor* node, OpContext* context);

// ROPE in place on cached keys (context shift): each cell's key rotated by its delta and encoded
// anew.
void shift_keys(const ggml_tensor* node, OpContext* context);

}  // namespace oscar::ggml_plugin

// The buffer type of our device, and how its tensors are told apart.
#pragma once

#include <ggml-backend-impl.h>

#include "cache_layer.h"

namespace oscar::ggml_plugin {

ggml_backend_buffer_type_t buffer_type();
void set_buffer_type_device(ggml_backend_dev_t device);

// The root of `tensor` when that is a cache tensor in a buffer of ours, or in the empty stand-in of
// a dry run; null otherwise.
const ggml_tensor* cache_root(const ggml_tensor* tensor);

// The layer of a cache tensor or a view of one; null for others, and in dry runs.
CacheLayer* cache_layer(const ggml_tensor* tensor);

}  // namespace oscar::ggml_plugin

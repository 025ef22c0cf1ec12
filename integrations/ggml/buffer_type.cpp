#include "buffer_type.h"

#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"
#include "cache_buffer.h"
#include "log.h"
#include "observe.h"
#include "size_estimate.h"
#include "state_io.h"

namespace oscar::ggml_plugin {
namespace {

ggml_backend_buffer_type the_type = {};

CacheBuffer& self(ggml_backend_buffer_t buffer) {
  return *static_cast<CacheBuffer*>(buffer->context);
}

// Runs `body`; an error becomes a refusal and false. Nothing is thrown into llama.cpp.
template <typename Body>
bool guarded(Body body) {
  try {
    body();
    return true;
  } catch (const std::exception& error) {
    log_refusal(error.what());
    return false;
  }
}

struct CacheRows {
  CacheLayer* layer;
  CacheGroup* group;
  Side side;
  RowRange rows;
};

// What an access from outside a graph speaks of. Throws Error when it is not whole rows; cells that
// were to be written in part (is_write) are refused then, for they hold neither the old nor the
// new.
CacheRows cache_rows(CacheLayer* layer, const ggml_tensor* tensor, std::size_t offset,
                     std::size_t size, bool is_write = false) {
  const auto rows = rows_of(tensor, offset, size);
  if (!rows) {
    const std::string reason = std::string(tensor->name) + ": bytes " + std::to_string(offset) +
                               " + " + std::to_string(size) +
                               " are not whole rows of the cache: not supported";
    CacheGroup& group = layer->buffer->open_group(*layer);
    if (is_write) refuse_rows(&group, rows_touched(tensor, offset, size), reason);
    throw Error(ErrorCode::kUnsupported, reason);
  }
  return {layer, &layer->buffer->open_group(*layer), layer->side_of(root_of(tensor)), *rows};
}

// States read and write roots, their streams and flat views; attention computed elsewhere reads
// permuted views.
bool is_attention_view(const ggml_tensor* tensor) {
  return tensor->op == GGML_OP_PERMUTE || tensor->op == GGML_OP_TRANSPOSE;
}

void free_buffer(ggml_backend_buffer_t buffer) { delete &self(buffer); }

void* get_base(ggml_backend_buffer_t buffer) { return self(buffer).data(); }

ggml_status init_tensor(ggml_backend_buffer_t buffer, ggml_tensor* tensor) {
  if (tensor->view_src != nullptr) return GGML_STATUS_SUCCESS;
  const bool done = guarded([&] {
    if (is_recurrent_name(tensor->name)) {
      throw Error(ErrorCode::kUnsupported,
                  std::string(tensor->name) +
                      " is a recurrent state; models with recurrent layers are "
                      "not supported: start without GGML_BACKEND_PATH");
    }
    if (const auto name = parse_cache_name(tensor->name)) self(buffer).add_root(tensor, *name);
  });
  return done ? GGML_STATUS_SUCCESS : GGML_STATUS_FAILED;
}

void memset_tensor(ggml_backend_buffer_t buffer, ggml_tensor* tensor, std::uint8_t value,
                   std::size_t offset, std::size_t size) {
  if (cache_layer(tensor) == nullptr) {
    std::memset(static_cast<std::uint8_t*>(tensor->data) + offset, value, size);
  } else if (offset == 0 && size == ggml_nbytes(root_of(tensor))) {
    self(buffer).clear(value);
  } else {
    log_refusal(std::string(tensor->name) +
                ": setting a part of the cache to one value is not supported; nothing was changed");
  }
}

void set_tensor(ggml_backend_buffer_t, ggml_tensor* tensor, const void* data, std::size_t offset,
                std::size_t size) {
  CacheLayer* const layer = cache_layer(tensor);
  if (layer == nullptr) {
    std::memcpy(static_cast<std::uint8_t*>(tensor->data) + offset, data, size);
    return;
  }
  guarded([&] {
    const CacheRows at = cache_rows(layer, tensor, offset, size, true);
    const std::string reason = restore_rows(at.group, at.group->layer(*layer), at.side, at.rows,
                                            {static_cast<const std::uint8_t*>(data), size});
    if (!reason.empty() && !at.group->said_refused_state) {
      at.group->said_refused_state = true;
      log_refusal(reason);
    }
  });
}

void get_tensor(ggml_backend_buffer_t, const ggml_tensor* tensor, void* data, std::size_t offset,
                std::size_t size) {
  CacheLayer* const layer = cache_layer(tensor);
  if (layer == nullptr) {
    std::memcpy(data, static_cast<const std::uint8_t*>(tensor->data) + offset, size);
    return;
  }
  const bool done = guarded([&] {
    const CacheRows at = cache_rows(layer, tensor, offset, size);
    if (is_attention_view(tensor)) {
      ++layer->buffer->num_read_elsewhere;
      read_values(at.group, at.group->layer(*layer), at.side, at.rows,
                  {static_cast<std::uint16_t*>(data), size / sizeof(std::uint16_t)});
    } else {
      save_rows(at.group, at.group->layer(*layer), at.side, at.rows,
                {static_cast<std::uint8_t*>(data), size});
    }
  });
  if (!done) std::memset(data, 0xff, size);  // NaN in every type: never values that look right
}

bool cpy_tensor(ggml_backend_buffer_t, const ggml_tensor* src, ggml_tensor* dst) {
  CacheLayer *const from = cache_layer(src), *const to = cache_layer(dst);
  if (from == nullptr || from != to) return false;  // by way of get_tensor and set_tensor
  return guarded([&] {
    const CacheRows source = cache_rows(from, src, 0, ggml_nbytes(src));
    const CacheRows target = cache_rows(to, dst, 0, ggml_nbytes(dst));
    copy_rows(source.group, source.group->layer(*from), source.side, source.rows, target.rows);
  });
}

void clear(ggml_backend_buffer_t buffer, std::uint8_t value) { self(buffer).clear(value); }

const char* get_name(ggml_backend_buffer_type_t) { return "OSCAR"; }
std::size_t get_alignment(ggml_backend_buffer_type_t) { return 64; }
bool is_host(ggml_backend_buffer_type_t) { return false; }

// What cannot be served is refused where llama.cpp can fail properly: when it asks for memory.
ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, std::size_t size) {
  for (CacheBuffer* cache : LiveCaches::instance().all()) {
    cache->prepare();
    if (!cache->refusal().empty()) return nullptr;
  }
  if (const std::string reason = missing_layers(); !reason.empty()) {
    log_refusal(reason);
    return nullptr;
  }
  ggml_backend_buffer_t result = nullptr;
  guarded([&] {
    auto buffer = std::make_unique<CacheBuffer>(size);
    ggml_backend_buffer_i iface = {};
    iface.free_buffer = free_buffer;
    iface.get_base = get_base;
    iface.init_tensor = init_tensor;
    iface.memset_tensor = memset_tensor;
    iface.set_tensor = set_tensor;
    iface.get_tensor = get_tensor;
    iface.cpy_tensor = cpy_tensor;
    iface.clear = clear;
    result = ggml_backend_buffer_init(type, iface, buffer.get(), size);
    buffer.release()->set_handle(result);
  });
  return result;
}

std::size_t get_alloc_size(ggml_backend_buffer_type_t, const ggml_tensor* tensor) {
  const auto name = tensor->view_src == nullptr && tensor->type == GGML_TYPE_F16
                        ? parse_cache_name(tensor->name)
                        : std::nullopt;
  return name ? estimate_root_bytes(*current_config(), tensor, *name) : ggml_nbytes(tensor);
}

}  // namespace

ggml_backend_buffer_type_t buffer_type() {
  if (the_type.iface.get_name == nullptr) {
    the_type.iface = {get_name, alloc_buffer, get_alignment, nullptr, get_alloc_size, is_host};
  }
  return &the_type;
}

void set_buffer_type_device(ggml_backend_dev_t device) { buffer_type()->device = device; }

const ggml_tensor* cache_root(const ggml_tensor* tensor) {
  const ggml_tensor* root = root_of(tensor);
  if (root->buffer == nullptr || root->buffer->buft != buffer_type()) return nullptr;
  return root->extra != nullptr || parse_cache_name(root->name) ? root : nullptr;
}

CacheLayer* cache_layer(const ggml_tensor* tensor) {
  const ggml_tensor* root = root_of(tensor);
  if (root->buffer == nullptr || root->buffer->buft != buffer_type()) return nullptr;
  return static_cast<CacheLayer*>(root->extra);
}

}  // namespace oscar::ggml_plugin

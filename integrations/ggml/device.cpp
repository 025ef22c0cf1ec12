#include "device.h"

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <string_view>

#include "base/error.h"
#include "buffer_type.h"
#include "cache_buffer.h"
#include "log.h"
#include "observe.h"
#include "ops.h"
#include "report.h"

namespace oscar::ggml_plugin {
namespace {

ggml_backend_device the_device = {};
ggml_backend_reg the_registry = {};

struct Backend {
  OpContext ops;
  bool checked_for_cache = false;
};

Backend& self(ggml_backend_t backend) { return *static_cast<Backend*>(backend->context); }

void run_node(ggml_tensor* node, ggml_cgraph* graph, OpContext* context) {
  switch (node->op) {
    case GGML_OP_NONE:
    case GGML_OP_VIEW:
    case GGML_OP_RESHAPE:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE: return;
    case GGML_OP_SET_ROWS: return write_rows(node, graph, context);
    case GGML_OP_FLASH_ATTN_EXT: return attend(node, context);
    case GGML_OP_ROPE: return shift_keys(node, context);
    default:
      throw Error(ErrorCode::kUnsupported, std::string(node->name) +
                                               ": the plugin does not compute " +
                                               ggml_op_name(node->op) + " on a KV cache");
  }
}

// What the failed graph has begun is undone, so that the next one starts afresh.
void end_ubatches(ggml_cgraph* graph) {
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    const CacheLayer* layer = cache_layer(ggml_graph_node(graph, i));
    if (layer != nullptr && layer->group != nullptr && layer->group->is_open()) {
      layer->group->settle();
    }
  }
}

// set_n_threads() has said why.
bool holds_cache_elsewhere(ggml_cgraph* graph) {
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    if (uses_cache_elsewhere(ggml_graph_node(graph, i))) return true;
  }
  return false;
}

ggml_status graph_compute(ggml_backend_t backend, ggml_cgraph* graph) {
  if (holds_cache_elsewhere(graph)) return GGML_STATUS_FAILED;
  try {
    OpContext& context = self(backend).ops;
    context.collector = current_collector();
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i)
      run_node(ggml_graph_node(graph, i), graph, &context);
    return GGML_STATUS_SUCCESS;
  } catch (const std::exception& error) {
    log_refusal(error.what());
    end_ubatches(graph);
    return GGML_STATUS_FAILED;
  }
}

void graph_optimize(ggml_backend_t, ggml_cgraph* graph,
                    ggml_backend_graph_optimize_params* params) {
  observe_graph(graph, params);
}

const char* backend_name(ggml_backend_t) { return "OSCAR"; }

void free_backend(ggml_backend_t backend) {
  delete &self(backend);
  delete backend;
}

// llama.cpp calls it before each graph. With no cache here by then, the context computes without
// us.
void set_n_threads(ggml_backend_t backend, int num_threads) {
  Backend& context = self(backend);
  context.ops.num_threads = num_threads;
  if (context.checked_for_cache) return;
  context.checked_for_cache = true;
  if (LiveCaches::instance().all().empty()) {
    log_refusal(
        "no layer has its KV cache on OSCAR0 (-nkvo, -ngl 0, or a model without one): the plugin "
        "has nothing to compute, and a cache elsewhere is not used; leave these options out, or "
        "start without GGML_BACKEND_PATH");
  }
}

ggml_backend_t init_backend(ggml_backend_dev_t device, const char*) {
  static ggml_guid guid = {0x6f, 0x73, 0x63, 0x61, 0x72, 0x2d, 0x6b, 0x76,
                           0x2d, 0x67, 0x67, 0x6d, 0x6c, 0x2d, 0x30, 0x31};
  ggml_backend_i iface = {};
  iface.get_name = backend_name;
  iface.free = free_backend;
  iface.graph_compute = graph_compute;
  iface.graph_optimize = graph_optimize;
  return new ggml_backend{&guid, iface, device, new Backend()};
}

const char* device_name(ggml_backend_dev_t) { return kDeviceName; }
const char* device_description(ggml_backend_dev_t) {
  return "KV cache at a few bits a value (CPU)";
}

// The cache lies in the host's memory: what is available of it.
void get_memory(ggml_backend_dev_t, std::size_t* free, std::size_t* total) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  *total = static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * page;
  *free = static_cast<std::size_t>(::sysconf(_SC_AVPHYS_PAGES)) * page;
  std::ifstream info("/proc/meminfo");
  for (std::string word; info >> word;) {
    if (word == "MemAvailable:" && info >> word) {
      *free = std::stoull(word) * 1024;
      break;
    }
  }
}

// A GPU by type: only there does llama.cpp place a KV cache.
enum ggml_backend_dev_type get_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }

void get_props(ggml_backend_dev_t device, ggml_backend_dev_props* props) {
  *props = {};
  props->name = device_name(device);
  props->description = device_description(device);
  get_memory(device, &props->memory_free, &props->memory_total);
  props->type = get_type(device);
  props->caps.mmap_support =
      true;  // without it llama.cpp gives up mapping the weights, which are not ours
}

ggml_backend_buffer_type_t get_buffer_type(ggml_backend_dev_t) { return buffer_type(); }

bool supports_op(ggml_backend_dev_t, const ggml_tensor* op) {
  switch (op->op) {
    case GGML_OP_NONE:
    case GGML_OP_VIEW:
    case GGML_OP_RESHAPE:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE: return true;
    default: return touches_cache(op) || uses_cache_elsewhere(op);
  }
}

bool supports_buft(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
  return type == buffer_type() || ggml_backend_buft_is_host(type);
}

const char* registry_name(ggml_backend_reg_t) { return "OSCAR"; }
std::size_t device_count(ggml_backend_reg_t) { return 1; }
ggml_backend_dev_t get_device(ggml_backend_reg_t, std::size_t) { return &the_device; }

void* get_proc_address(ggml_backend_reg_t, const char* name) {
  const std::string_view wanted = name;
  if (wanted == "ggml_backend_set_n_threads") return reinterpret_cast<void*>(set_n_threads);
  if (wanted == "oscar_plugin_api_version") return reinterpret_cast<void*>(api_version);
  if (wanted == "oscar_configure") return reinterpret_cast<void*>(configure_from_spec);
  if (wanted == "oscar_set_collector") return reinterpret_cast<void*>(set_collector);
  if (wanted == "oscar_report") return reinterpret_cast<void*>(report);
  if (wanted == "oscar_last_error") {
    set_host_takes_refusals();
    return reinterpret_cast<void*>(take_last_error);
  }
  return nullptr;
}

}  // namespace

ggml_backend_reg_t registry() {
  ggml_backend_device_i& device = the_device.iface;
  device.get_name = device_name;
  device.get_description = device_description;
  device.get_memory = get_memory;
  device.get_type = get_type;
  device.get_props = get_props;
  device.init_backend = init_backend;
  device.get_buffer_type = get_buffer_type;
  device.supports_op = supports_op;
  device.supports_buft = supports_buft;
  the_device.reg = &the_registry;
  set_buffer_type_device(&the_device);
  the_registry.api_version = GGML_BACKEND_API_VERSION;
  the_registry.iface = {registry_name, device_count, get_device, get_proc_address};
  return &the_registry;
}

}  // namespace oscar::ggml_plugin

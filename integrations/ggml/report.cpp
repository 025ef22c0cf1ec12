#include "report.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "cache_buffer.h"
#include "config.h"
#include "log.h"

namespace oscar::ggml_plugin {
namespace {

std::atomic<calibrate::Collector*> collector{nullptr};

template <std::size_t size>
void copy_text(const std::string& text, char (&target)[size]) {
  std::snprintf(target, size, "%s", text.c_str());
}

bool is_open(const CacheBuffer& buffer) {
  return !buffer.groups().empty() && buffer.groups().front()->is_open();
}

}  // namespace

int api_version() { return kPluginApiVersion; }

int configure_from_spec(const char* kv_spec, char* error, std::size_t error_size) {
  try {
    configure(kv_spec);
    return 0;
  } catch (const std::exception& failure) {
    if (error_size > 0) std::snprintf(error, error_size, "%s", failure.what());
    return -1;
  }
}

void set_collector(calibrate::Collector* target) { collector.store(target); }
calibrate::Collector* current_collector() { return collector.load(); }

// A context may have several buffers (sliding window and not): those of the last context follow
// each other and hold different layers.
int report(Report* result) {
  *result = Report();
  const std::vector<CacheBuffer*> live = LiveCaches::instance().all();
  std::vector<bool> counted;
  bool any = false;
  double code_bits = 0;
  for (auto buffer = live.rbegin(); buffer != live.rend(); ++buffer) {
    if (!is_open(**buffer)) continue;
    bool same_context = true;
    for (const auto& layer : (*buffer)->layers()) {
      const auto index = static_cast<std::size_t>(layer->layer);
      if (counted.size() <= index) counted.resize(index + 1, false);
      same_context = same_context && !counted[index];
    }
    if (!same_context) break;
    for (const auto& layer : (*buffer)->layers()) counted[layer->layer] = true;
    any = true;
    result->kv_bytes_allocated += (*buffer)->bytes();
    result->num_attended += (*buffer)->num_attended;
    result->num_read_elsewhere += (*buffer)->num_read_elsewhere;
    for (const auto& group : (*buffer)->groups()) {
      result->kv_bytes_used += group->used_bytes();
      result->kv_values_used += group->used_values();
      code_bits += group->code_bits() * static_cast<double>(group->used_values());
    }
    const CacheGroup& first = *(*buffer)->groups().front();
    result->cells_used = static_cast<std::uint64_t>(first.num_cells_used());
    copy_text(method_name(first.artefact().method), result->method);
    copy_text(first.layers().front().codec->kernels().name +
                  std::string((*buffer)->config().spec.force_float ? " float" : ""),
              result->kernels);
  }
  if (!any) return -1;
  if (result->kv_values_used > 0) {
    result->bits_per_value = 8.0 * static_cast<double>(result->kv_bytes_used) /
                             static_cast<double>(result->kv_values_used);
    result->code_bits = code_bits / static_cast<double>(result->kv_values_used);
  }
  return 0;
}

}  // namespace oscar::ggml_plugin

// The functions of plugin_api.h.
#pragma once

#include "plugin_api.h"

namespace oscar::ggml_plugin {

int api_version();
int configure_from_spec(const char* kv_spec, char* error, std::size_t error_size);
void set_collector(calibrate::Collector* collector);
calibrate::Collector* current_collector();
int report(Report* report);

}  // namespace oscar::ggml_plugin

// The one exported function: ggml_backend_init, called when llama.cpp loads GGML_BACKEND_PATH.
#include <ggml-backend-impl.h>

#include <cstring>
#include <string>

#include "cache_buffer.h"
#include "config.h"
#include "device.h"
#include "log.h"

namespace oscar::ggml_plugin {
namespace {

// The interface between ggml and its backends changes without its version number always saying so.
bool host_fits() {
  if (std::strcmp(ggml_version(), OSCAR_GGML_VERSION) == 0) return true;
  log_refusal(std::string("this llama.cpp brings ggml ") + ggml_version() +
              "; the plugin was built for ggml " + OSCAR_GGML_VERSION + " (interface " +
              std::to_string(GGML_BACKEND_API_VERSION) +
              ") and is not loaded: build it against this llama.cpp");
  return false;
}

// Says at the program's end that the plugin was there for nothing (-dev none).
struct UnusedNotice {
  bool loaded = false;
  ~UnusedNotice() {
    if (loaded && !any_refusal() && !LiveCaches::instance().ever_any()) {
      log_line(
          1, "loaded, but no context placed its KV cache on OSCAR0 (-dev none, -ngl 0 or -nkvo?)");
    }
  }
};

}  // namespace
}  // namespace oscar::ggml_plugin

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void) {
  using namespace oscar::ggml_plugin;
  if (!host_fits()) return nullptr;
  configure_from_environment();
  LiveCaches::instance();  // outlives the notice
  static UnusedNotice notice;
  notice.loaded = true;
  return registry();
}

// What our CLI and tests ask of the llama.cpp plugin beyond ggml's interface, through
// ggml_backend_reg_get_proc_address(reg, name). Both sides are built together; the version guards a
// mixed installation.
//
// A stock program needs none of this: it configures the plugin by the environment (read once, at
// load):
//   OSCAR_KV       the --kv spec, e.g. "model.oscar.safetensors" or "quarot:k3v2"; default "quarot"
//   OSCAR_LOG      0 silent but for refusals, 1 one line per context (default), 2 details;
//                  −1 silent in programs that take refusals from oscar_last_error, elsewhere 0
//   OSCAR_COPIES   sequences of a unified cache that get a window of exact copies each; default: as
//                  many as the context has
//   OSCAR_PARTIAL  1: some layers may have their cache elsewhere (-ngl below the number of layers)
//   OSCAR_CPU      the kernels, e.g. "avx2"; default: the best that this processor has
#pragma once

#include <cstddef>
#include <cstdint>

#include "calibrate/collector.h"

namespace oscar::ggml_plugin {

inline constexpr int kPluginApiVersion = 4;
inline constexpr const char* kDeviceName = "OSCAR0";

struct Report {
  std::uint64_t kv_bytes_allocated =
      0;  // pages and copies of live caches: what is reserved for the whole context
  std::uint64_t kv_bytes_used = 0;   // of the cells written now: codes, scales, copies
  std::uint64_t kv_values_used = 0;  // K and V values held by those cells
  double bits_per_value = 0;         // 8 · kv_bytes_used / kv_values_used
  double code_bits = 0;          // of a value without copies, and with every group of tokens full
  std::uint64_t cells_used = 0;  // of the first cache group
  // Attention operations over the live caches that the plugin computed, and views of keys or values
  // that another device took decoded for its own attention.
  std::uint64_t num_attended = 0, num_read_elsewhere = 0;
  char method[32] = {};
  char kernels[24] = {};  // "avx2", "avx2 float" where codes are attended in floating point
};

// "oscar_plugin_api_version": int()
using ApiVersionFn = int (*)();
// "oscar_configure": sets what contexts created from now on use. 0, or −1 with one line in error
// (never longer than error_size). spec "" keeps keys and values exact (k16v16) — the same as
// "naive:k16v16".
using ConfigureFn = int (*)(const char* kv_spec, char* error, std::size_t error_size);
// "oscar_set_collector": every token that contexts write and attend goes to it too, until nullptr
// is set. One context at a time.
using SetCollectorFn = void (*)(calibrate::Collector* collector);
// "oscar_report": of the cache that was created last and lives still; −1 when there is none.
using ReportFn = int (*)(Report* report);
// "oscar_last_error": the reason for the last refusal or failed graph, one line; "" if none.
// Cleared by reading.
using LastErrorFn = const char* (*)();

}  // namespace oscar::ggml_plugin

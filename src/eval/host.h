// The process's side of llama.cpp: backends, our plugin, the log, and the wish to stop.
#pragma once

#include <ggml-backend.h>

#include <atomic>
#include <functional>
#include <string>

#include "integrations/ggml/plugin_api.h"

namespace oscar::eval {

struct HostOptions {
  // Called with whole lines of llama.cpp's log; null: errors are kept for messages, the rest is
  // dropped.
  std::function<void(const std::string&)> log;
  // Set from a signal handler: decoding, loading and fitting stop with Error(kInterrupted).
  const std::atomic<bool>* stop = nullptr;
};

// Throws Error(kInterrupted) once it is set; null: never.
void throw_if_stopped(const std::atomic<bool>* stop);

// The functions of plugin_api.h, resolved.
struct Plugin {
  ggml_backend_dev_t device = nullptr;
  ggml_plugin::ConfigureFn configure = nullptr;
  ggml_plugin::SetCollectorFn set_collector = nullptr;
  ggml_plugin::ReportFn report = nullptr;
  ggml_plugin::LastErrorFn last_error = nullptr;
};

// One a process. Not thread-safe, but stop may be set at any time. Paths: llama.cpp's backends lie
// beside libllama.so or in $OSCAR_LLAMA_LIB; the plugin is $OSCAR_PLUGIN, or liboscar-ggml.so in
// ../lib or ../integrations/ggml of the executable's folder, or in that folder.
class Host {
 public:
  explicit Host(HostOptions options);  // throws Error(kNotFound) when there is no CPU backend
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  // Loads the plugin at the first call. Throws Error(kNotFound | kMismatch | kUnsupported).
  const Plugin& plugin();

  bool stopped() const { return options_.stop != nullptr && options_.stop->load(); }
  void throw_if_stopped() const { eval::throw_if_stopped(options_.stop); }
  const std::atomic<bool>* stop() const { return options_.stop; }

  // The first error line that llama.cpp logged since the last call, "" if none.
  std::string take_error();

 private:
  static void on_log(ggml_log_level level, const char* text, void* self);

  HostOptions options_;
  Plugin plugin_;
  std::string line_, first_error_;
  bool line_is_error_ = false;
};

std::string executable_folder();  // with a '/' at its end
std::string llama_folder();       // of the libraries that this program runs with
std::string find_plugin();        // throws Error(kNotFound)
std::string llama_version_text();

}  // namespace oscar::eval

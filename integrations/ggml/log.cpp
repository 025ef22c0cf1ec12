#include "log.h"

#include <atomic>
#include <cstdio>
#include <mutex>

namespace oscar::ggml_plugin {
namespace {

std::atomic<int> log_level{1};
std::mutex last_error_mutex;
std::string last_error, taken_error;
std::atomic<bool> refused{false};
std::atomic<bool> host_takes_refusals{false};

}  // namespace

void set_log_level(int level) { log_level.store(level); }

void log_line(int level, const std::string& line) {
  if (log_level.load() >= level) std::fprintf(stderr, "oscar: %s\n", line.c_str());
}

void log_refusal(const std::string& line) {
  log_line(host_takes_refusals.load() ? 0 : log_level.load(), line);
  refused.store(true);
  const std::lock_guard lock(last_error_mutex);
  last_error = line;
}

void set_host_takes_refusals() { host_takes_refusals.store(true); }

bool any_refusal() { return refused.load(); }

const char* take_last_error() {
  const std::lock_guard lock(last_error_mutex);
  taken_error = std::move(last_error);
  last_error.clear();
  return taken_error.c_str();
}

}  // namespace oscar::ggml_plugin

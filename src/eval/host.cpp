#include "eval/host.h"

#include <dlfcn.h>
#include <link.h>
#include <llama.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"

namespace oscar::eval {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPluginFile = "liboscar-ggml.so";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The loader maps a library by what its header says; where the file ends before that, touching it
// ends the process.
void check_whole_library(const std::string& path) {
  const MappedFile file(path);
  ElfW(Ehdr) header{};
  const bool has_header = file.bytes().size() >= sizeof header;
  if (has_header) std::memcpy(&header, file.bytes().data(), sizeof header);
  if (!has_header || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    throw Error(ErrorCode::kCorrupt, path + ": is no shared library");
  }
  const std::uint64_t needed = header.e_shoff + std::uint64_t{header.e_shnum} * header.e_shentsize;
  if (needed <= file.bytes().size()) return;
  throw Error(ErrorCode::kCorrupt, path + ": is cut short: " + std::to_string(needed) +
                                       " bytes are needed, it has " +
                                       std::to_string(file.bytes().size()));
}

template <typename Function>
void resolve(ggml_backend_reg_t registry, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(ggml_backend_reg_get_proc_address(registry, name));
  if (*function == nullptr) {
    throw Error(ErrorCode::kMismatch, std::string(kPluginFile) + " has no function '" + name +
                                          "'; program and plugin must be of one build");
  }
}

}  // namespace

std::string executable_folder() {
  std::error_code failure;
  const fs::path path = fs::read_symlink("/proc/self/exe", failure);
  return failure ? "./" : path.parent_path().string() + "/";
}

std::string llama_folder() {
  const std::string forced = environment("OSCAR_LLAMA_LIB");
  if (!forced.empty()) return forced;
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&llama_version), &info) == 0)
    return executable_folder();
  return fs::path(info.dli_fname).parent_path().string();
}

std::string find_plugin() {
  const std::string forced = environment("OSCAR_PLUGIN");
  if (!forced.empty()) {
    if (fs::exists(forced)) return forced;
    throw Error(ErrorCode::kNotFound,
                "OSCAR_PLUGIN is '" + forced + "': no such file; it must name " + kPluginFile);
  }
  const std::string here = executable_folder();
  for (const char* folder : {"../lib/", "../integrations/ggml/", ""}) {
    const std::string path = here + folder + kPluginFile;
    if (fs::exists(path)) return path;
  }
  throw Error(ErrorCode::kNotFound, std::string(kPluginFile) + " lies neither in " + here +
                                        "../lib/ nor beside the program; set OSCAR_PLUGIN to it");
}

std::string llama_version_text() { return llama_version(); }

Host::Host(HostOptions options) : options_(std::move(options)) {
  llama_log_set(&Host::on_log, this);
  const std::string folder = llama_folder();
  ggml_backend_load_all_from_path(folder.c_str());
  if (ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) == nullptr) {
    throw Error(ErrorCode::kNotFound,
                "no libggml-cpu*.so that fits this processor in '" + folder +
                    "'; set OSCAR_LLAMA_LIB to the folder of llama.cpp's libraries");
  }
  llama_backend_init();
  first_error_.clear();
}

Host::~Host() {
  llama_backend_free();
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
}

const Plugin& Host::plugin() {
  if (plugin_.device != nullptr) return plugin_;
  // GGML_BACKEND_PATH may have brought it along already.
  if (ggml_backend_dev_by_name(ggml_plugin::kDeviceName) == nullptr) {
    const std::string path = find_plugin();
    check_whole_library(path);
    first_error_.clear();
    if (ggml_backend_load(path.c_str()) == nullptr) {
      const std::string reason = take_error();
      throw Error(ErrorCode::kUnsupported,
                  path + ": llama.cpp could not load it" + (reason.empty() ? "" : ": " + reason));
    }
  }
  const ggml_backend_dev_t device = ggml_backend_dev_by_name(ggml_plugin::kDeviceName);
  if (device == nullptr) {
    throw Error(ErrorCode::kMismatch,
                std::string(kPluginFile) + " offers no device '" + ggml_plugin::kDeviceName + "'");
  }
  const ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(device);
  ggml_plugin::ApiVersionFn version = nullptr;
  resolve(registry, "oscar_plugin_api_version", &version);
  if (version() != ggml_plugin::kPluginApiVersion) {
    throw Error(ErrorCode::kMismatch, std::string(kPluginFile) + " has interface version " +
                                          std::to_string(version()) + "; this program needs " +
                                          std::to_string(ggml_plugin::kPluginApiVersion));
  }
  Plugin plugin;
  resolve(registry, "oscar_configure", &plugin.configure);
  resolve(registry, "oscar_set_collector", &plugin.set_collector);
  resolve(registry, "oscar_report", &plugin.report);
  resolve(registry, "oscar_last_error", &plugin.last_error);
  plugin.device = device;
  plugin_ = plugin;
  return plugin_;
}

void throw_if_stopped(const std::atomic<bool>* stop) {
  if (stop != nullptr && stop->load()) throw Error(ErrorCode::kInterrupted, "interrupted");
}

std::string Host::take_error() {
  std::string error = std::exchange(first_error_, std::string());
  // Names of llama.cpp's functions say nothing to a user.
  for (const std::string prefix :
       {"llama_model_load: ", "error loading model: ", "error loading model hyperparameters: ",
        "error loading model vocabulary: "}) {
    if (error.compare(0, prefix.size(), prefix) == 0) error.erase(0, prefix.size());
  }
  return error;
}

void Host::on_log(ggml_log_level level, const char* text, void* self) {
  Host& host = *static_cast<Host*>(self);
  if (level != GGML_LOG_LEVEL_CONT) host.line_is_error_ = level == GGML_LOG_LEVEL_ERROR;
  for (const char* c = text; *c != '\0'; ++c) {
    if (*c != '\n') {
      host.line_ += *c;
      continue;
    }
    if (host.line_is_error_ && host.first_error_.empty()) host.first_error_ = host.line_;
    if (host.options_.log && !host.line_.empty()) host.options_.log(host.line_);
    host.line_.clear();
  }
}

}  // namespace oscar::eval

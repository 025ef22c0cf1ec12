// oscar doctor
#include <ggml.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>

#include "base/cpu_features.h"
#include "base/error.h"
#include "commands.h"
#include "cuda/build.h"
#ifdef OSCAR_CUDA_KERNELS
#include "cuda/gpu.h"
#endif
#include "eval/host.h"
#include "eval/self_test.h"
#include "llama_server.h"
#include "memory_sizes.h"
#include "support.h"

namespace oscar::tool {
namespace {

struct DoctorCommand {
  CommonOptions common;
  std::string server;
};

// One line a check; the program goes on after one that fails, but not after a signal.
class Report {
 public:
  // `check` returns what it found; an Error is a failure.
  void line(const std::string& name, const std::function<std::string()>& check) {
    test(name, [&check] { return eval::SelfTestResult{true, check()}; });
  }
  void test(const std::string& name, const std::function<eval::SelfTestResult()>& check) {
    throw_if_stopped();
    eval::SelfTestResult result;
    try {
      result = check();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInterrupted) throw;
      result = {false, error.what()};
    }
    add(name, result.passed, result.text);
  }
  int num_failed() const { return num_failed_; }
  std::size_t num_checks() const { return checks_.size(); }
  const Json& json() const { return checks_; }

 private:
  void add(const std::string& name, bool passed, const std::string& text) {
    std::printf("%s  %s: %s\n", passed ? "ok  " : "FAIL", name.c_str(), text.c_str());
    std::fflush(stdout);
    checks_.push_back({{"name", name}, {"ok", passed}, {"text", text}});
    num_failed_ += passed ? 0 : 1;
  }

  Json checks_ = Json::array();
  int num_failed_ = 0;
};

std::string kernel_sets() {
  const kernels::KernelSet& selected = kernels::selected_kernel_set();
  std::string text;
  for (const kernels::KernelSet* set : kernels::all_kernel_sets()) {
    text += (text.empty() ? "" : ", ") + std::string(set->name);
    if (!set->supported()) text += " (needs " + std::string(set->needs) + ")";
    if (set == &selected) text += " (selected)";
  }
  return text;
}

// What the build can do, and with kernels: whether they run here. A machine without a GPU is none
// that something is wrong with.
std::string gpu_text() {
  std::string text = cuda::kBuildText.choice;
#ifdef OSCAR_CUDA_KERNELS
  text += cuda::has_gpu() ? ", run on " + cuda::usable_gpu(0) : "; there is no GPU here";
#endif
  return text;
}

void check_llama(const DoctorCommand& command, Report* report) {
  ::setenv("OSCAR_LOG", "-1", 0);
  std::unique_ptr<eval::Host> host;
  report->line("llama.cpp", [&] {
    host = std::make_unique<eval::Host>(eval::HostOptions{});
    return eval::llama_version_text() + " with ggml " + ggml_version() + ", in " +
           eval::llama_folder();
  });
  if (host == nullptr) return;
  report->line("plugin", [&] {
    host->plugin();
    return eval::find_plugin() + ", built for ggml " + ggml_version() + ", interface " +
           std::to_string(ggml_plugin::kPluginApiVersion);
  });
  report->line("llama-server", [&] {
    const std::string server = find_llama_server(command.server);
    check_llama_server(server, eval::find_plugin());
    return server + ", loads the plugin";
  });
}

void run_doctor(const DoctorCommand& command) {
  Report report;
  report.line("processor", [] {
    const std::string features = cpu_features().text();
    return cpu_name() + (features.empty() ? "" : ": " + features);
  });
  report.line("kernels", kernel_sets);
  for (const kernels::KernelSet* set : kernels::all_kernel_sets()) {
    if (!set->supported()) continue;
    report.test(std::string("codec, ") + set->name, [set] { return eval::test_codec(*set); });
    report.test(std::string("attention, ") + set->name,
                [set] { return eval::test_attention(*set); });
  }
  report.line("GPU", gpu_text);
  check_llama(command, &report);
  report.line("memory", [] {
    const std::uint64_t available = available_memory();
    return available == 0 ? std::string("not known") : human_bytes(available) + " available";
  });
  throw_if_stopped();
  if (!command.common.json.empty()) {
    Json document;
    document["version"] = OSCAR_VERSION;
    document["ok"] = report.num_failed() == 0;
    document["checks"] = report.json();
    write_json(command.common.json, document);
  }
  if (report.num_failed() == 0) return;
  throw Error(ErrorCode::kUnsupported,
              std::to_string(report.num_failed()) + " of " + std::to_string(report.num_checks()) +
                  " checks failed; docs/troubleshooting.md says what to do");
}

}  // namespace

void add_doctor(CLI::App* program) {
  auto command = std::make_shared<DoctorCommand>();
  CLI::App* app = program->add_subcommand(
      "doctor",
      "is everything here and right: processor, kernels against the reference, llama.cpp, plugin, "
      "server\n"
      "  oscar doctor");
  app->add_option("--server", command->server,
                  "the llama-server to check (default: beside llama.cpp's libraries)");
  add_json_option(app, &command->common);
  app->callback([command] { run_doctor(*command); });
}

}  // namespace oscar::tool

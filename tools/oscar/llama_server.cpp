#include "llama_server.h"

#include <unistd.h>

#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "eval/host.h"
#include "subprocess.h"
#include "support.h"

namespace oscar::tool {
namespace {

constexpr int kCheckSeconds = 60;

// The plugin's reason for not being loaded, "" where it gave none.
std::string refusal_in(const std::string& output) {
  std::istringstream lines(output);
  const std::string mark = "oscar: ";
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find(mark);
    if (at != std::string::npos) return line.substr(at + mark.size());
  }
  return "";
}

}  // namespace

std::string find_llama_server(const std::string& forced) {
  const std::string path = forced.empty() ? eval::llama_folder() + "/llama-server" : forced;
  if (::access(path.c_str(), X_OK) == 0 && std::filesystem::is_regular_file(path)) {
    return std::filesystem::absolute(path).string();
  }
  throw Error(ErrorCode::kNotFound,
              in_quotes(path) + " is no program" +
                  (forced.empty() ? "; `scripts/setup` builds llama-server there, or give one with "
                                    "--server"
                                  : "; --server must name llama-server"));
}

void check_llama_server(const std::string& server, const std::string& plugin) {
  const ProcessResult result = run_process(
      {server, "--list-devices"},
      {{"GGML_BACKEND_PATH", plugin}, {"OSCAR_LOG", "0"}, {"OSCAR_KV", ""}}, kCheckSeconds);
  if (result.output.find(ggml_plugin::kDeviceName) != std::string::npos) return;
  const std::string reason = refusal_in(result.output);
  if (!reason.empty()) throw Error(ErrorCode::kMismatch, server + ": " + reason);
  throw Error(ErrorCode::kMismatch,
              server + ": does not load " + plugin + " (no device " + ggml_plugin::kDeviceName +
                  "; exit status " + std::to_string(result.status) +
                  "): it must be llama.cpp's server " + eval::llama_version_text() +
                  ", built with GGML_BACKEND_DL=ON");
}

}  // namespace oscar::tool

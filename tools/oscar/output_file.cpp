#include "output_file.h"

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/text.h"

namespace oscar::tool {
namespace {

namespace fs = std::filesystem;

// An artefact says what it is among its first bytes of metadata.
constexpr std::size_t kArtefactHeadBytes = 1 << 20;
constexpr std::size_t kJsonBytes = std::size_t{64} << 20;  // none of ours is larger

std::string head_of(const std::string& path, std::size_t num_bytes) {
  std::ifstream file(path, std::ios::binary);
  std::string head(num_bytes, '\0');
  file.read(head.data(), static_cast<std::streamsize>(num_bytes));
  head.resize(static_cast<std::size_t>(file.gcount()));
  return head;
}

// Every JSON of this program is an object with the version that wrote it.
bool is_result(const std::string& bytes) {
  const auto document = nlohmann::json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  return document.is_object() && document.contains("version") && document["version"].is_string();
}

bool is_artefact(const std::string& head) {
  std::uint64_t header_bytes = 0;
  if (head.size() <= sizeof header_bytes || head[sizeof header_bytes] != '{') return false;
  std::memcpy(&header_bytes, head.data(), sizeof header_bytes);
  return std::string_view(head).substr(sizeof header_bytes, header_bytes).find("oscar-artefact") !=
         std::string_view::npos;
}

}  // namespace

void check_output(const std::string& path, OutputKind kind) {
  for (const char* folder : {"/dev/", "/proc/"}) {
    if (path.starts_with(folder)) {
      throw Error(ErrorCode::kInvalidArgument,
                  "cannot write " + in_quotes(path) + ": it is no file on disk; give one");
    }
  }
  // Tries the folder, and the file if there is one; nothing stays.
  { const AtomicFile attempt(path); }
  std::error_code error;
  if (!fs::exists(path, error) || fs::file_size(path, error) == 0) return;
  const bool is_kind = kind == OutputKind::kJson ? is_result(head_of(path, kJsonBytes))
                                                 : is_artefact(head_of(path, kArtefactHeadBytes));
  if (is_kind) return;
  throw Error(ErrorCode::kInvalidArgument,
              "will not replace " + in_quotes(path) + ": it holds no " +
                  (kind == OutputKind::kJson ? "results" : "artefact") + " of this program" +
                  "; remove it or give another name");
}

std::function<std::string(const std::string&)> output_check(OutputKind kind) {
  return [kind](const std::string& path) -> std::string {
    try {
      check_output(path, kind);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
}

void check_distinct(const std::string& first, const std::string& second) {
  const auto absolute = [](const std::string& path) {
    return fs::weakly_canonical(fs::absolute(path)).string();
  };
  if (first.empty() || second.empty() || absolute(first) != absolute(second)) return;
  throw Error(ErrorCode::kInvalidArgument,
              in_quotes(first) + " is given for two files; the second would replace the first");
}

}  // namespace oscar::tool

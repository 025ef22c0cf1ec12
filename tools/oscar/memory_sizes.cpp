#include "memory_sizes.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "base/text.h"

namespace oscar::tool {
namespace {

// A number in the first line of a file; nothing where there is none ("max").
std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

std::optional<std::uint64_t> from_meminfo(const std::string& name) {
  std::ifstream info("/proc/meminfo");
  for (std::string word; info >> word;) {
    std::uint64_t kibibytes = 0;
    if (word == name && info >> kibibytes) return kibibytes * 1024;
  }
  return std::nullopt;
}

// Of this process's control group (version 2), its parents included.
std::uint64_t control_group_room() {
  std::ifstream file("/proc/self/cgroup");
  std::string line, folder;
  while (std::getline(file, line)) {
    if (line.rfind("0::", 0) == 0) folder = line.substr(3);
  }
  std::uint64_t room = UINT64_MAX;
  for (;;) {
    const std::string base = "/sys/fs/cgroup" + folder;
    const auto limit = number_in(base + "/memory.max");
    const auto used = number_in(base + "/memory.current");
    if (limit && used) room = std::min(room, *limit - std::min(*limit, *used));
    if (folder.empty() || folder == "/") return room;
    folder.erase(folder.rfind('/'));
  }
}

}  // namespace

std::uint64_t parse_memory_size(const std::string& option, const std::string& text) {
  double value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit(end, text.data() + text.size());
  if (unit.size() == 3 && unit.substr(1) == "iB") unit.resize(1);
  if (unit.size() == 2 && unit[1] == 'B') unit.resize(1);
  const std::string units = "KMGT";
  const std::size_t power = unit.empty() || unit == "B" ? 0
                            : unit.size() == 1 && units.find(unit[0]) != std::string::npos
                                ? units.find(unit[0]) + 1
                                : units.size() + 1;
  for (std::size_t i = 0; i < power; ++i) value *= 1024;
  if (status != std::errc() || power > units.size() || !(value >= 1) || value > 1e18) {
    throw Error(ErrorCode::kInvalidArgument,
                option + " " + in_quotes(text) +
                    " is no memory size; write bytes, or 512K, 512M, 2G, 1.5G, 1T: from 1 to "
                    "10^18 bytes");
  }
  return static_cast<std::uint64_t>(value);
}

std::uint64_t available_memory() {
  const std::uint64_t system = from_meminfo("MemAvailable:").value_or(0);
  return system == 0 ? 0 : std::min(system, control_group_room());
}

std::optional<int> copied_sequences_from_environment() {
  const char* text = std::getenv("OSCAR_COPIES");
  if (text == nullptr || *text == '\0') return std::nullopt;
  const std::string value = text;
  int number = 0;
  const auto [end, status] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (status != std::errc() || end != value.data() + value.size() || number < 1 || number > 256) {
    throw Error(ErrorCode::kInvalidArgument, "OSCAR_COPIES is " + in_quotes(value) +
                                                 "; it must be a whole number from 1 to 256");
  }
  return number;
}

}  // namespace oscar::tool

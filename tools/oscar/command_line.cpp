#include "command_line.h"

#include <fstream>
#include <iterator>

namespace oscar::tool {
namespace {

std::string shell_word(const std::string& word) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,=+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace

std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  std::string line;
  std::string::size_type begin = 0;
  while (begin < bytes.size()) {
    const auto end = std::min(bytes.find('\0', begin), bytes.size());
    const std::string word = bytes.substr(begin, end - begin);
    line += begin == 0 ? "oscar" : " " + shell_word(word);
    begin = end + 1;
  }
  return line;
}

}  // namespace oscar::tool

// Reads the header of a GGUF file that nobody vouches for, and refuses what llama.cpp would stumble
// over: sizes that overflow, empty keys, impossible shapes, tensor data that the file does not
// hold.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace oscar::eval {

// Limits far above any real model; they bound the memory that a header can make a reader spend.
inline constexpr std::uint64_t kMaxGgufKeys = 1 << 16;
inline constexpr std::uint64_t kMaxGgufTensors = 1 << 16;
inline constexpr std::uint64_t kMaxGgufKeyBytes = (1 << 16) - 1;
inline constexpr std::uint64_t kMaxKeptStringBytes = 4096;
inline constexpr std::uint64_t kMaxKeptElements = 4096;
inline constexpr std::uint64_t kMaxKeptBytes = 16 << 20;  // of all names and values together
inline constexpr std::uint32_t kGgufVersion = 3;

// monostate: present, but longer than what is kept (the tokenizer's tables).
using GgufValue = std::variant<std::monostate, std::int64_t, double, bool, std::string,
                               std::vector<std::int64_t>>;

struct GgufHeader {
  std::string path;
  std::map<std::string, GgufValue> values;
  std::uint64_t num_tensors = 0;
  std::uint64_t data_offset = 0;  // of the tensor data, in bytes from the file's start
  std::uint64_t data_bytes = 0;   // that the tensors need

  // Empty when there is no such key. Throws Error(kCorrupt) naming the key when its type is
  // another.
  std::optional<std::int64_t> integer(const std::string& key) const;
  std::optional<std::string> text(const std::string& key) const;
  // A scalar is a list of one.
  std::vector<std::int64_t> integers(const std::string& key) const;
};

// Throws Error(kNotFound | kIo) when the file cannot be read, Error(kCorrupt | kUnsupported) in one
// line that names the file and the key or tensor. Reads the header alone, with a fixed buffer.
GgufHeader check_gguf(const std::string& path);

}  // namespace oscar::eval

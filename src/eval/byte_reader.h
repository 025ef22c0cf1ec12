// A file read forwards through a small buffer, with every read checked against the file's size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace oscar::eval {

// Owns the descriptor. Not thread-safe.
class ByteReader {
 public:
  explicit ByteReader(const std::string& path);  // throws Error(kNotFound | kIo)
  ~ByteReader();
  ByteReader(const ByteReader&) = delete;
  ByteReader& operator=(const ByteReader&) = delete;

  std::uint64_t size() const { return size_; }
  std::uint64_t position() const { return position_; }
  std::uint64_t remaining() const { return size_ - position_; }

  // False when the file ends first; then nothing is read.
  [[nodiscard]] bool read(void* bytes, std::uint64_t num_bytes);
  [[nodiscard]] bool skip(std::uint64_t num_bytes);
  template <typename T>
  [[nodiscard]] bool read_value(T* value) {
    return read(value, sizeof(T));
  }

 private:
  std::string path_;
  int fd_ = -1;
  std::uint64_t size_ = 0, position_ = 0;
  std::vector<char> buffer_;
  std::uint64_t buffer_start_ = 0, buffer_end_ = 0;  // file positions that the buffer holds
};

}  // namespace oscar::eval

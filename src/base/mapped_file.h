// A file's bytes, mapped read-only.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace oscar {

// Owns the mapping; bytes() is valid while the object lives. Movable, not copyable; reading is
// thread-safe. The file must not be cut short by others while it is mapped.
class MappedFile {
 public:
  // Throws Error(kNotFound) when there is no such file, Error(kIo) when it is no regular file or
  // cannot be read.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::uint8_t> bytes() const noexcept { return {data_, size_}; }
  const std::string& path() const noexcept { return path_; }

 private:
  void release() noexcept;

  std::string path_;
  const std::uint8_t* data_ = nullptr;  // null: an empty file
  std::uint64_t size_ = 0;
};

}  // namespace oscar

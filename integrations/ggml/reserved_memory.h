// Address space that becomes memory when it is touched, so that a cache costs what its tokens need.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oscar::ggml_plugin {

// Owns a zero-filled, page-aligned range. Not copyable.
class ReservedMemory {
 public:
  ReservedMemory() = default;
  explicit ReservedMemory(std::size_t num_bytes);  // throws Error(kUnsupported) naming the size
  ~ReservedMemory();
  ReservedMemory(ReservedMemory&& other) noexcept;
  ReservedMemory& operator=(ReservedMemory&& other) noexcept;

  std::uint8_t* data() const { return data_; }
  std::size_t size() const { return size_; }

  // Every byte reads `value` afterwards. 0 gives the memory back to the system.
  void fill(std::uint8_t value);
  // Any access to whole pages within [offset, offset + num_bytes) ends the process with a fault.
  void forbid(std::size_t offset, std::size_t num_bytes);

 private:
  std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace oscar::ggml_plugin

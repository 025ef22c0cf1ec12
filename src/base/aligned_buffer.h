// Zero-filled memory on a cache-line boundary, for pages, tables and workspaces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <type_traits>

#include "base/checked_math.h"
#include "base/error.h"

namespace oscar {

inline constexpr std::size_t kBufferAlignment = 64;

// Owns `size` elements of a trivially copyable T, all bytes zero at first. Movable, not copyable;
// never grows.
template <typename T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AlignedBuffer() = default;
  // Throws Error(kUnsupported) naming the size when the memory is not to be had.
  explicit AlignedBuffer(std::uint64_t size) : size_(size) {
    if (size == 0) return;
    const auto bytes = checked_mul(size, sizeof(T));
    void* memory =
        bytes ? ::operator new (*bytes, std::align_val_t{kBufferAlignment}, std::nothrow) : nullptr;
    if (memory == nullptr) {
      throw Error(ErrorCode::kUnsupported, "cannot allocate " + std::to_string(size) +
                                               " elements of " + std::to_string(sizeof(T)) +
                                               " bytes: not enough memory");
    }
    std::memset(memory, 0, *bytes);
    data_.reset(static_cast<T*>(memory));
  }

  T* data() noexcept { return data_.get(); }
  const T* data() const noexcept { return data_.get(); }
  std::uint64_t size() const noexcept { return data_ ? size_ : 0; }
  std::uint64_t size_bytes() const noexcept { return size() * sizeof(T); }
  T& operator[](std::uint64_t i) noexcept { return data_.get()[i]; }
  const T& operator[](std::uint64_t i) const noexcept { return data_.get()[i]; }
  T* begin() noexcept { return data(); }
  T* end() noexcept { return data() + size(); }
  const T* begin() const noexcept { return data(); }
  const T* end() const noexcept { return data() + size(); }

 private:
  struct Free {
    void operator()(T* memory) const noexcept {
      ::operator delete (memory, std::align_val_t{kBufferAlignment});
    }
  };
  std::unique_ptr<T, Free> data_;
  std::uint64_t size_ = 0;
};

}  // namespace oscar

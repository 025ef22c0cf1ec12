#include "reserved_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"

namespace oscar::ggml_plugin {

ReservedMemory::ReservedMemory(std::size_t num_bytes) : size_(num_bytes) {
  if (num_bytes == 0) return;
  void* const memory = ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(ErrorCode::kUnsupported, "cannot reserve " + std::to_string(num_bytes) +
                                             " bytes for the KV cache; use a smaller context (-c)");
  }
  data_ = static_cast<std::uint8_t*>(memory);
}

ReservedMemory::~ReservedMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

ReservedMemory::ReservedMemory(ReservedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

ReservedMemory& ReservedMemory::operator=(ReservedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void ReservedMemory::fill(std::uint8_t value) {
  if (data_ == nullptr) return;
  if (value != 0 || ::madvise(data_, size_, MADV_DONTNEED) != 0) std::memset(data_, value, size_);
}

void ReservedMemory::forbid(std::size_t offset, std::size_t num_bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t first = (offset + page - 1) / page * page;
  const std::size_t last = (offset + num_bytes) / page * page;
  if (first < last) ::mprotect(data_ + first, last - first, PROT_NONE);
}

}  // namespace oscar::ggml_plugin

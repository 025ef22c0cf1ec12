// Which pages are free and how many sequences hold each. Knows numbers only; the bytes belong to
// the cache.
#pragma once

#include <cstdint>
#include <vector>

namespace oscar::cache {

class PagePool {
 public:
  explicit PagePool(std::int32_t num_pages);

  std::int64_t num_free() const { return std::ssize(free_); }
  std::int32_t references(std::int32_t page) const { return references_[page]; }

  std::int32_t take();  // a free page with one reference; −1: none is left
  void share(std::int32_t page) { ++references_[page]; }
  void release(std::int32_t page);  // free again with the last reference
  std::uint64_t bytes() const;

 private:
  std::vector<std::int32_t> free_;        // a stack; room for every page is reserved
  std::vector<std::int32_t> references_;  // [num_pages]
};

}  // namespace oscar::cache

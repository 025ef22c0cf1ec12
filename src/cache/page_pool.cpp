#include "cache/page_pool.h"

namespace oscar::cache {

PagePool::PagePool(std::int32_t num_pages) : references_(num_pages, 0) {
  free_.reserve(num_pages);
  for (std::int32_t page = num_pages; page-- > 0;) free_.push_back(page);
}

std::int32_t PagePool::take() {
  if (free_.empty()) return -1;
  const std::int32_t page = free_.back();
  free_.pop_back();
  references_[page] = 1;
  return page;
}

void PagePool::release(std::int32_t page) {
  if (--references_[page] == 0) free_.push_back(page);
}

std::uint64_t PagePool::bytes() const {
  return (free_.capacity() + references_.capacity()) * sizeof(std::int32_t);
}

}  // namespace oscar::cache

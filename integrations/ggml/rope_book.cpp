#include "rope_book.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace oscar::ggml_plugin {

std::shared_ptr<const RopeTable> RopeBook::table(const RopeSpec& spec, std::int32_t position) {
  if (position > kMaxPosition) {
    throw Error(ErrorCode::kUnsupported, "position " + std::to_string(position) +
                                             " is beyond the last that the cache can rotate, " +
                                             std::to_string(kMaxPosition));
  }
  const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& e) { return e.table->spec() == spec; });
  if (entry != entries_.end() && entry->max_position >= position) return entry->table;
  std::int32_t max_position = kFirstMaxPosition;
  while (max_position < position) max_position = 2 * max_position + 1;
  Entry fresh{max_position, std::make_shared<const RopeTable>(spec, max_position)};
  if (entry == entries_.end()) {
    entries_.push_back(fresh);
  } else {
    *entry = fresh;
  }
  return fresh.table;
}

}  // namespace oscar::ggml_plugin

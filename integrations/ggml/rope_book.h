// Rotation tables that layers of a model share.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/rope_table.h"

namespace oscar::ggml_plugin {

inline constexpr std::int32_t kFirstMaxPosition = (1 << 16) - 1;  // tables grow from here
inline constexpr std::int32_t kMaxPosition = (1 << 22) - 1;

class RopeBook {
 public:
  // A table for this rotation that reaches `position` at least.
  std::shared_ptr<const RopeTable> table(const RopeSpec& spec, std::int32_t position);

 private:
  struct Entry {
    std::int32_t max_position;
    std::shared_ptr<const RopeTable> table;
  };
  std::vector<Entry> entries_;
};

}  // namespace oscar::ggml_plugin

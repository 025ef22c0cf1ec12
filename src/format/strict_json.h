// JSON from untrusted text: bounded in size and depth, each name once. Internal to format.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace oscar {

inline constexpr std::size_t kMaxJsonBytes = 1 << 20;
inline constexpr int kMaxJsonDepth = 8;

// `what` is what messages call the text. Throws Error(kCorrupt).
nlohmann::json parse_strict_json(std::string_view text, const std::string& what);

}  // namespace oscar

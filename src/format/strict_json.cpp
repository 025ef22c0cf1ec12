#include "format/strict_json.h"

#include <set>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace oscar {

nlohmann::json parse_strict_json(std::string_view text, const std::string& what) {
  using nlohmann::json;
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kCorrupt, what + " " + why);
  };
  if (text.size() > kMaxJsonBytes) {
    refuse("has " + std::to_string(text.size()) + " bytes; at most " +
           std::to_string(kMaxJsonBytes) + " are legal");
  }
  // The JSON library takes a zero byte for the end of input.
  if (text.find('\0') != std::string_view::npos) refuse("holds a zero byte");
  std::vector<std::set<std::string>> names;  // of the objects that are open, by depth
  const auto inspect = [&](int depth, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
      if (depth >= kMaxJsonDepth) {
        refuse("nests deeper than " + std::to_string(kMaxJsonDepth) + " levels");
      }
      names.resize(static_cast<std::size_t>(depth) + 1);
      names.back().clear();
    } else if (event == json::parse_event_t::key) {
      const std::string& key = value.get_ref<const std::string&>();
      if (!names.at(static_cast<std::size_t>(depth) - 1).insert(key).second) {
        refuse("has " + in_quotes(key) + " twice");
      }
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), inspect);
  } catch (const json::exception&) {
    refuse("is not JSON: " + in_quotes(text));
  }
  return {};
}

}  // namespace oscar

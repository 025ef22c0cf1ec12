#include "calibrate/fit_variant.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "methods/definition.h"

namespace oscar::calibrate {
namespace {

struct Part {
  const char* name;
  bool FitVariant::*flag;
};
constexpr Part kParts[] = {{"no-u", &FitVariant::no_eigenbasis},
                           {"no-p", &FitVariant::no_permutation},
                           {"target=raw", &FitVariant::raw_target},
                           {"per-layer", &FitVariant::per_layer}};

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, "ablation " + in_quotes(text) + ": " + why);
}

}  // namespace

std::string FitVariant::text() const {
  std::string names;
  for (const Part& part : kParts) {
    if (this->*part.flag) names += (names.empty() ? "" : ",") + std::string(part.name);
  }
  return names;
}

const std::vector<std::string>& fit_variant_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Part& part : kParts) list.push_back(part.name);
    return list;
  }();
  return names;
}

FitVariant parse_fit_variant(const std::string& text) {
  FitVariant variant;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string name = text.substr(begin, end - begin);
    begin = end + 1;
    const auto* const part = std::find_if(std::begin(kParts), std::end(kParts),
                                          [&](const Part& known) { return name == known.name; });
    if (part == std::end(kParts)) {
      std::string names;
      for (const Part& known : kParts)
        names += (names.empty() ? "" : ", ") + std::string(known.name);
      refuse(text, in_quotes(name) + " is unknown; legal: " + names);
    }
    if (variant.*part->flag) refuse(text, in_quotes(name) + " is given twice");
    variant.*part->flag = true;
  }
  if (variant.no_eigenbasis && variant.raw_target) {
    refuse(text, "no-u leaves no eigenbasis that target=raw could change; give one of them");
  }
  return variant;
}

bool has_fit_variants(Method method) { return methods::definition(method).has_recipe(); }

void check_fit_variant(const FitVariant& variant, Method method) {
  if (!variant.any() || has_fit_variants(method)) return;
  refuse(variant.text(), std::string(method_name(method)) + " fits no transforms");
}

}  // namespace oscar::calibrate

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "format/artefact.h"

namespace oscar {

const std::vector<Method>& all_methods() {
  static const std::vector<Method> methods = {
#define OSCAR_METHOD(id, name) Method::k##id,
#include "format/methods.inc"
#undef OSCAR_METHOD
  };
  return methods;
}

const char* method_name(Method method) noexcept {
  switch (method) {
#define OSCAR_METHOD(id, name) \
  case Method::k##id:          \
    return name;
#include "format/methods.inc"
#undef OSCAR_METHOD
  }
  return "unknown";
}

bool is_method_name(const std::string& name) {
  return std::any_of(all_methods().begin(), all_methods().end(),
                     [&](Method method) { return name == method_name(method); });
}

std::string method_names() {
  std::string names;
  for (const Method method : all_methods()) {
    if (!names.empty()) names += ", ";
    names += method_name(method);
  }
  return names;
}

Method method_from_name(const std::string& name) {
  for (const Method method : all_methods()) {
    if (name == method_name(method)) return method;
  }
  throw Error(ErrorCode::kInvalidArgument,
              "method " + in_quotes(name) + " is unknown; known methods: " + method_names());
}

}  // namespace oscar

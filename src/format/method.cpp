#include "base/error.h"
#include "base/text.h"
#include "format/artefact.h"

namespace oscar {
namespace {

constexpr Method kMethods[] = {Method::kNaive, Method::kQuarot, Method::kOscar, Method::kOscarPlus};

}  // namespace

const char* method_name(Method method) noexcept {
  switch (method) {
    case Method::kNaive: return "naive";
    case Method::kQuarot: return "quarot";
    case Method::kOscar: return "oscar";
    case Method::kOscarPlus: return "oscar-plus";
  }
  return "unknown";
}

Method method_from_name(const std::string& name) {
  std::string legal;
  for (const Method method : kMethods) {
    if (name == method_name(method)) return method;
    if (!legal.empty()) legal += ", ";
    legal += method_name(method);
  }
  throw Error(ErrorCode::kInvalidArgument,
              "method " + in_quotes(name) + " is unknown; known methods: " + legal);
}

}  // namespace oscar

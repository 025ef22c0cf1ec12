// The table of kernel sets and the choice among them.
#include <cstdlib>
#include <string>

#include "base/cpu_features.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "kernels/kernels.inc"

namespace oscar::kernels {

#define OSCAR_DECLARE_OPERATION(Result, operation, Params) Result operation(const Params&) noexcept;
#define OSCAR_DECLARE_SET(set, needs, is_supported) \
  namespace set {                                   \
  OSCAR_KERNEL_OPERATIONS(OSCAR_DECLARE_OPERATION)  \
  }
OSCAR_KERNEL_SETS(OSCAR_DECLARE_SET)

namespace {

// A using-declaration per set would clash, so each set's operations are named from inside a struct
// of its own.
#define OSCAR_ASSIGN_OPERATION(Result, operation, Params) kernels.operation = operation;
#define OSCAR_TABLE_ENTRY(set, set_needs, is_supported)         \
  KernelSet make_##set() {                                      \
    using namespace set;                                        \
    KernelSet kernels{};                                        \
    kernels.name = #set;                                        \
    kernels.needs = set_needs;                                  \
    kernels.supported = [] {                                    \
      [[maybe_unused]] const CpuFeatures& cpu = cpu_features(); \
      return is_supported;                                      \
    };                                                          \
    OSCAR_KERNEL_OPERATIONS(OSCAR_ASSIGN_OPERATION)             \
    return kernels;                                             \
  }
OSCAR_KERNEL_SETS(OSCAR_TABLE_ENTRY)

std::string names_of_supported_sets() {
  std::string names;
  for (const KernelSet* set : all_kernel_sets()) {
    if (set->supported()) names += (names.empty() ? "" : ", ") + std::string(set->name);
  }
  return names;
}

const KernelSet& best_supported_set() {
  for (const KernelSet* set : all_kernel_sets()) {
    if (set->supported()) return *set;
  }
  throw Error(ErrorCode::kUnsupported, "no kernel set runs on this CPU");
}

}  // namespace

std::span<const KernelSet* const> all_kernel_sets() {
#define OSCAR_STATIC_SET(set, needs, is_supported) static const KernelSet set##_set = make_##set();
  OSCAR_KERNEL_SETS(OSCAR_STATIC_SET)
#define OSCAR_ADDRESS_OF_SET(set, needs, is_supported) &set##_set,
  static const KernelSet* const sets[] = {OSCAR_KERNEL_SETS(OSCAR_ADDRESS_OF_SET)};
  return sets;
}

const KernelSet& kernel_set_by_name(const std::string& name) {
  for (const KernelSet* set : all_kernel_sets()) {
    if (name == set->name && set->supported()) return *set;
    if (name == set->name) {
      throw Error(ErrorCode::kUnsupported,
                  "kernel set '" + name + "' needs " + set->needs +
                      ", which this CPU lacks; supported here: " + names_of_supported_sets());
    }
  }
  throw Error(ErrorCode::kUnsupported, "there is no kernel set '" + name +
                                           "'; supported here: " + names_of_supported_sets());
}

const KernelSet& selected_kernel_set() {
  const char* forced = std::getenv("OSCAR_CPU");
  if (forced == nullptr || *forced == '\0') return best_supported_set();
  try {
    return kernel_set_by_name(forced);
  } catch (const Error& error) {
    throw Error(error.code(), std::string("OSCAR_CPU: ") + error.what());
  }
}

}  // namespace oscar::kernels

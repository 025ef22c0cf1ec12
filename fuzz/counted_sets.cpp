// The kernel sets of this machine behind functions that count their calls, so that a run can show
// that it reached every operation of every set.
#include <cstdio>
#include <cstdlib>

#include "kernel_case.h"
#include "kernels/kernels.inc"

namespace oscar::kernels {
namespace {

#define OSCAR_COUNTED_OPERATION(Result, operation, Params) \
  static inline std::uint64_t num_##operation = 0;         \
  static Result operation(const Params& params) noexcept { \
    ++num_##operation;                                     \
    return counted->operation(params);                     \
  }
#define OSCAR_COUNTED_SET(set, needs, is_supported)   \
  struct Counted_##set {                              \
    static inline const KernelSet* counted = nullptr; \
    OSCAR_KERNEL_OPERATIONS(OSCAR_COUNTED_OPERATION)  \
  };
OSCAR_KERNEL_SETS(OSCAR_COUNTED_SET)

template <typename Set>
const KernelSet* counting(const KernelSet* set) {
  static KernelSet counts = *set;
  Set::counted = set;
#define OSCAR_COUNT_OPERATION(Result, operation, Params) counts.operation = Set::operation;
  OSCAR_KERNEL_OPERATIONS(OSCAR_COUNT_OPERATION)
  return &counts;
}

// "calls of avx2: transform_rows 12 encode_rows 0 ...", a line a set; scripts/test reads it.
void print_calls() {
#define OSCAR_PRINT_CALLS(Result, operation, Params) \
  std::fprintf(stderr, " " #operation " %llu",       \
               static_cast<unsigned long long>(Set::num_##operation));
#define OSCAR_PRINT_SET(set, needs, is_supported) \
  if (Counted_##set::counted != nullptr) {        \
    using Set = Counted_##set;                    \
    std::fprintf(stderr, "calls of " #set ":");   \
    OSCAR_KERNEL_OPERATIONS(OSCAR_PRINT_CALLS)    \
    std::fprintf(stderr, "\n");                   \
  }
  OSCAR_KERNEL_SETS(OSCAR_PRINT_SET)
}

}  // namespace

std::span<const KernelSet* const> sets_scalar_first() {
  static const std::vector<const KernelSet*> sets = [] {
    std::vector<const KernelSet*> found;
    std::size_t index = 0;  // all_kernel_sets() has the list's order
#define OSCAR_ADD_SET(set, needs, is_supported)                                \
  if (const KernelSet* here = all_kernel_sets()[index++]; here->supported()) { \
    found.insert(found.begin(), counting<Counted_##set>(here));                \
  }
    OSCAR_KERNEL_SETS(OSCAR_ADD_SET)
    std::fprintf(stderr, "kernel sets:");
    for (const KernelSet* set : found) std::fprintf(stderr, " %s", set->name);
    std::fprintf(stderr, "\n");
    std::atexit(print_calls);
    return found;
  }();
  return sets;
}

}  // namespace oscar::kernels

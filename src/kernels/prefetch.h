// Prefetch of the plane that is used next, spread over the work on this one. Included after one ISA
// header of simd/.
#pragma once

#include "kernels/kernels.h"

namespace oscar::kernels {
namespace {

class Prefetcher {
 public:
  // num_steps calls of step() cover the plane; null: nothing to do.
  Prefetcher(const std::uint8_t* plane, std::int64_t num_bytes, int num_steps)
      : next_(plane),
        end_(plane == nullptr ? nullptr : plane + num_bytes),
        lines_per_step_(num_steps < 1 ? 0 : (num_bytes / kLine + num_steps) / num_steps) {}

  void step() {
    for (std::int64_t i = 0; i < lines_per_step_ && next_ < end_; ++i, next_ += kLine) {
      __builtin_prefetch(next_);
    }
  }

 private:
  static constexpr std::int64_t kLine = 64;
  const std::uint8_t* next_;
  const std::uint8_t* end_;
  std::int64_t lines_per_step_;
};

}  // namespace
}  // namespace oscar::kernels

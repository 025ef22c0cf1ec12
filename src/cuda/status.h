// Result of a launch: never throws, never allocates.
#pragma once

#include <cstdio>

namespace oscar::cuda {

struct [[nodiscard]] Status {
  enum class Code { kOk, kInvalidArgument, kCudaError };
  Code code = Code::kOk;
  char message[240] = {};  // one sentence; empty when ok

  bool ok() const noexcept { return code == Code::kOk; }

  template <typename... Args>
  static Status failure(Code code, const char* format, Args... args) noexcept {
    Status status;
    status.code = code;
    std::snprintf(status.message, sizeof status.message, format, args...);
    return status;
  }
};

}  // namespace oscar::cuda

// Errors that set-up and I/O throw; the hot path does not throw.
#pragma once

#include <stdexcept>
#include <string>

namespace oscar {

enum class ErrorCode {
  kInvalidArgument,  // a value outside its legal range
  kNotFound,         // no such file, tensor, layer, method
  kCorrupt,          // bytes that contradict themselves or the format
  kMismatch,         // valid, but made for another model, shape or version
  kUnsupported,      // valid, but not something this build or machine can do
  kIo,               // the system refused to read, write or rename
  kInterrupted,      // the user stopped it
};

// `what()` is one line: the thing, the offending value, and what would be right.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace oscar

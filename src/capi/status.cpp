#include "capi/status.h"

#include "kernels/kernels.h"

namespace oscar::capi {
namespace {

std::string& last_error() noexcept {
  thread_local std::string message;
  return message;
}

}  // namespace

void set_last_error(const std::string& message) noexcept {
  try {
    last_error() = message;
  } catch (const std::bad_alloc&) {
    last_error().clear();
  }
}

oscar_status status_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kInvalidArgument: return OSCAR_INVALID_ARGUMENT;
    case ErrorCode::kNotFound: return OSCAR_NOT_FOUND;
    case ErrorCode::kCorrupt: return OSCAR_CORRUPT;
    case ErrorCode::kMismatch: return OSCAR_MISMATCH;
    case ErrorCode::kUnsupported: return OSCAR_UNSUPPORTED;
    case ErrorCode::kIo: return OSCAR_IO;
    case ErrorCode::kInterrupted: return OSCAR_INTERNAL;
  }
  return OSCAR_INTERNAL;
}

void require_pointer(const void* pointer, const char* name) {
  if (pointer == nullptr)
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name) + " is NULL; it must point to something");
}

}  // namespace oscar::capi

extern "C" {

const char* oscar_version(void) { return OSCAR_VERSION; }
int oscar_abi_version(void) { return OSCAR_ABI_VERSION; }
const char* oscar_last_error(void) { return oscar::capi::last_error().c_str(); }

const char* oscar_status_name(oscar_status status) {
  switch (status) {
    case OSCAR_OK: return "OSCAR_OK";
    case OSCAR_INVALID_ARGUMENT: return "OSCAR_INVALID_ARGUMENT";
    case OSCAR_NOT_FOUND: return "OSCAR_NOT_FOUND";
    case OSCAR_CORRUPT: return "OSCAR_CORRUPT";
    case OSCAR_MISMATCH: return "OSCAR_MISMATCH";
    case OSCAR_UNSUPPORTED: return "OSCAR_UNSUPPORTED";
    case OSCAR_IO: return "OSCAR_IO";
    case OSCAR_OUT_OF_PAGES: return "OSCAR_OUT_OF_PAGES";
    case OSCAR_NOT_FINITE: return "OSCAR_NOT_FINITE";
    case OSCAR_OUT_OF_MEMORY: return "OSCAR_OUT_OF_MEMORY";
    case OSCAR_INTERNAL: return "OSCAR_INTERNAL";
  }
  return "unknown status";
}

const char* oscar_kernels(void) {
  const char* name = nullptr;
  oscar::capi::guarded([&] {
    name = oscar::kernels::selected_kernel_set().name;
    return OSCAR_OK;
  });
  return name;
}

}  // extern "C"

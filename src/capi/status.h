// From exceptions to status codes: what every function of the C interface runs its body in.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "base/error.h"
#include "oscar/oscar.h"

namespace oscar::capi {

void set_last_error(const std::string& message) noexcept;
oscar_status status_of(ErrorCode code) noexcept;

// Throws Error(kInvalidArgument) naming the parameter.
void require_pointer(const void* pointer, const char* name);

// Runs body(), which returns a status or throws.
template <typename Body>
oscar_status guarded(const Body& body) noexcept {
  try {
    return body();
  } catch (const Error& error) {
    set_last_error(error.what());
    return status_of(error.code());
  } catch (const std::bad_alloc&) {
    set_last_error("out of memory");
    return OSCAR_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    set_last_error(std::string("internal fault: ") + error.what());
    return OSCAR_INTERNAL;
  }
}

}  // namespace oscar::capi

// The device OSCAR0 and its backend: what ggml calls.
#pragma once

#include <ggml-backend-impl.h>

namespace oscar::ggml_plugin {

ggml_backend_reg_t registry();

}  // namespace oscar::ggml_plugin

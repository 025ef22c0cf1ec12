// QuaRot (2404.00456), its KV cache: a Hadamard over the channels of keys and values.
#include "methods/definition.h"
#include "methods/hadamard.h"

namespace oscar::methods {

const Definition kQuarot = {
    .summary = "Hadamard on keys and values, per token",
    .k = {},
    .v = {},
    .k_rotation = hadamard_times_p,
    .v_rotation = hadamard_times_p,
    .hadamard = true,
};

}  // namespace oscar::methods

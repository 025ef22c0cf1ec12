// SpinQuant (2405.16406), its KV cache, with the rotation of the values where its training begins:
// a Hadamard with random signs. Its learned rotations need gradients through the model.
#include "methods/hadamard.h"
#include "methods/token_coder.h"

namespace oscar::methods {

const Definition kSpinquantHad = {
    .summary = "Hadamard on keys, signed Hadamard on values, whole zero points, per token",
    .k = {},
    .v = {},
    .legal_bits = {2, 3, 4},
    .k_rotation = hadamard,
    .v_rotation = signed_hadamard,
    .hadamard = true,
    .key_coder = make_integer_token_coder,
    .value_coder = make_integer_token_coder,
};

}  // namespace oscar::methods

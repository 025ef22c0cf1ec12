// OSCAR (2605.17757): rotations R = U·H·P from C_Q and C_S, fitted clip, affine codes.
#include "methods/definition.h"
#include "methods/hadamard.h"

namespace oscar::methods {

const Definition kOscar = {
    .summary = "calibrated rotations and clip, per token (2605.17757)",
    .k = {},
    .v = {},
    .k_rotation = hadamard_times_p,  // until it is calibrated
    .v_rotation = hadamard_times_p,
    .hadamard = true,
    .calibrated = true,
    .recipe = {.key_candidates = {KeyBasis::kRotated}, .value_candidates = {ValueBasis::kRotated}},
};

}  // namespace oscar::methods

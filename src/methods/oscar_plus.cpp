// oscar-plus: RoPE-aware key mean, smoothing where it helps, no zero point, unbiased scale.
#include "methods/definition.h"
#include "methods/hadamard.h"

namespace oscar::methods {

// An output averages many values: errors that shrink them all add up, unbiased ones cancel.
constexpr QuantSpec kUnbiasedLevels = {.codebook = Codebook::kSymmetric,
                                       .scale_fit = ScaleFit::kUnbiased};

const Definition kOscarPlus = {
    .summary = "key mean before RoPE, smoothing, unbiased scale, per token",
    .k = kUnbiasedLevels,
    .v = kUnbiasedLevels,
    .k_rotation = hadamard_times_p,  // until it is calibrated
    .v_rotation = hadamard_times_p,
    .hadamard = true,
    .calibrated = true,
    .recipe = {.key_candidates = {KeyBasis::kHadamard, KeyBasis::kRotated, KeyBasis::kSmoothed},
               .value_candidates = {ValueBasis::kHadamard, ValueBasis::kRotated},
               .subtract_key_mean = true,
               .offer_value_mean = true},
};

}  // namespace oscar::methods

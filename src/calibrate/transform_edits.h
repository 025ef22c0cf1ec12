// Parts of the transforms R = U·H·P taken out of an artefact in memory, for ablations. Each throws
// Error(kInvalidArgument) naming the option where the artefact has no such part.
#pragma once

#include "format/artefact.h"

namespace oscar::calibrate {

// no-u: H·P in place of U·H·P. Clip ratios stay those that were fitted with U.
void drop_eigenbasis(Artefact* artefact);

// no-p: channels in the order that H leaves them in. Head sizes that are powers of two.
void drop_permutation(Artefact* artefact);

// no-hadamard: R·(H·P)ᵀ, so that U stays; the identity for a data-free method.
void drop_hadamard(Artefact* artefact);

}  // namespace oscar::calibrate

// Bits by layer and side: those that a budget buys the most accuracy for.
#pragma once

#include <vector>

#include "format/artefact.h"

namespace oscar::calibrate {

// What the model's predictions lose, in nats a token, when one side of one layer alone is stored at
// the fewest bits and everything else is exact.
struct LayerSensitivity {
  double keys = 0, values = 0;
};

// Stored bits a value, scales included and copies not, over keys and values of all layers.
double stored_bits(const Artefact& artefact);

// Throws Error(kInvalidArgument) where `budget` is below what the method stores at the fewest bits,
// or the method has bits of its own.
void check_budget(double budget, const Artefact& artefact);

// The layers' losses by bits, as fitted in units of their own (FitOptions::with_losses), become
// nats: scaled so that at the fewest bits they are what was measured. sensitivities: in the order
// of the layers.
void scale_losses(const std::vector<LayerSensitivity>& sensitivities, Artefact* artefact);

// Gives every layer bits of its own: from the fewest everywhere, again and again to the side whose
// loss falls most for its bytes, as long as stored_bits() is at most `budget`. The same artefact
// and budget give the same bits.
void assign_bits(double budget, Artefact* artefact);

// Σ of the losses at the layers' bits.
double predicted_loss(const Artefact& artefact);

}  // namespace oscar::calibrate

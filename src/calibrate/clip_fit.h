// The clip ratio that loses least, found with the real encoder.
#pragma once

#include <string>

#include "calibrate/matrix.h"
#include "calibrate/trial_codec.h"

namespace oscar::calibrate {

// error = Σ_r row_weights[r] · e_r · metric · e_rᵀ over rows e of decoded − given.
struct ErrorWeights {
  const MatrixF* metric = nullptr;       // [head_dim][head_dim], symmetric; null: identity
  const VectorF* row_weights = nullptr;  // [num_rows]; null: 1
};

double weighted_error(const MatrixF& error, const ErrorWeights& weights);

struct ClipFit {
  float ratio = 1.0f;
  double error = 0;  // weighted_error at that ratio
};

// Searches the order statistics of a row (a ratio clips at the ⌈ratio·head_dim⌉-th smallest
// magnitude): a coarse grid, then between its best point's neighbours. The rows are transformed and
// centred. Throws Error(kCorrupt) naming `what` where a row is not finite.
ClipFit fit_clip(const MatrixF& rows, const PlaneLayout& layout, const ErrorWeights& weights,
                 const std::string& what, TrialCodec* codec);

}  // namespace oscar::calibrate

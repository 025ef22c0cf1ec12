// One layer: scores every candidate transform, then fits the chosen ones for all bits.
#pragma once

#include <vector>

#include "calibrate/collector.h"
#include "calibrate/key_fit.h"
#include "calibrate/value_fit.h"
#include "format/artefact.h"

namespace oscar::calibrate {

// What a method does, apart from the statistics.
struct Recipe {
  Method method = Method::kOscarPlus;
  std::vector<KeyBasis> key_candidates;
  std::vector<ValueBasis> value_candidates;
  bool subtract_means = false;
  QuantSpec k_quant, v_quant;
};

// Throws Error(kInvalidArgument) for methods that need no calibration. head_dims: of all layers.
Recipe recipe_for(Method method, const std::vector<int>& k_dims, const std::vector<int>& v_dims);

struct LayerInput {
  int layer = 0;
  const LayerStatistics* stats = nullptr;
  const RopeTable* rope = nullptr;  // null: not known
};

// Refuses with Error(kCorrupt) naming layer and head what is not finite, empty or contradictory.
void check_statistics(const LayerInput& input);

// Lower is better; in the order of the recipe's candidates.
struct LayerScores {
  std::vector<double> keys;    // attention divergence in nats, mean over the layer's query heads
  std::vector<double> values;  // relative squared error of the attention output
  bool windowed = true;        // the text was long enough to leave exact pairs out
};

LayerScores score_layer(const LayerInput& input, const Recipe& recipe);

ArtefactLayer fit_layer(const LayerInput& input, const Recipe& recipe, KeyBasis key_basis,
                        ValueBasis value_basis);

}  // namespace oscar::calibrate

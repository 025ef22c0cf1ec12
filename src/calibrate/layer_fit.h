// One layer: scores every candidate transform, takes the best and fits its clips for all bits.
#pragma once

#include <vector>

#include "calibrate/collector.h"
#include "calibrate/fit_variant.h"
#include "calibrate/key_fit.h"
#include "calibrate/value_fit.h"
#include "format/artefact.h"

namespace oscar::calibrate {

// What a method does, apart from the statistics.
struct Recipe : methods::Recipe {
  Method method = Method::kOscarPlus;
  QuantSpec k_quant, v_quant;
  FitVariant variant;
  // Layers get k_losses (attention divergence, mean over heads) and v_losses (squared output error,
  // relative).
  bool with_losses = false;

  std::vector<double> mix(int head_dim) const;  // H·P, or H where the variant leaves P out
};

// Throws Error(kInvalidArgument) for methods that need no calibration, and for a variant that
// leaves out what the method or a head size does not have. head_dims: of all layers.
Recipe recipe_for(Method method, const FitVariant& variant, const std::vector<int>& k_dims,
                  const std::vector<int>& v_dims);

struct LayerInput {
  int layer = 0;
  const LayerStatistics* stats = nullptr;
  const RopeTable* rope = nullptr;  // null: not known
};

// Refuses with Error(kCorrupt) naming layer and head what is not finite, empty or contradictory.
void check_statistics(const LayerInput& input);

struct LayerFit {
  ArtefactLayer layer;
  // What each of the recipe's candidates loses here at the default bits, in their order.
  std::vector<double> key_scores;    // attention divergence in nats, mean over the query heads
  std::vector<double> value_scores;  // weighted squared error relative to the values' energy
  std::size_t key_choice = 0, value_choice = 0;  // indices of the candidates taken
  bool value_mean = false;                       // the layer's values are stored less their mean
  bool windowed = true;  // the text was long enough to leave pairs out that are exact at run time
};

// Takes the candidate that loses least; the first of the recipe's unless another is clearly better.
LayerFit fit_layer(const LayerInput& input, const Recipe& recipe);

}  // namespace oscar::calibrate

// What an ablation changes in a fit; everything else is fitted as without it.
#pragma once

#include <string>
#include <vector>

#include "format/artefact.h"

namespace oscar::calibrate {

struct FitVariant {
  bool no_eigenbasis = false;   // no-u: H·P in place of U·H·P
  bool no_permutation = false;  // no-p: channels in the order that H leaves them in
  bool raw_target = false;  // target=raw: U of KᵀK (keys after RoPE) and VᵀV, not of C_Q and C_S
  bool per_layer = false;   // per-layer: one U, and one smoothing, for all KV heads of a layer
  bool operator==(const FitVariant&) const = default;

  bool any() const { return *this != FitVariant{}; }
  std::string text() const;  // "no-p,target=raw"; empty: nothing is changed
};

// The names alone, each a variant of its own.
const std::vector<std::string>& fit_variant_names();

// Comma-separated names. Throws Error(kInvalidArgument) for a name that is unknown or given twice,
// and where no-u leaves nothing that another part could change.
FitVariant parse_fit_variant(const std::string& text);

// Whether the method's transforms are fitted, so that a variant means something.
bool has_fit_variants(Method method);

// Throws Error(kInvalidArgument) naming the part that the method does not have.
void check_fit_variant(const FitVariant& variant, Method method);

}  // namespace oscar::calibrate

// What the eigenbases of a layer's KV heads are of: C_Q and C_S of each head, or what an ablation
// puts in their place.
#pragma once

#include <cstdint>
#include <vector>

#include "calibrate/collector.h"
#include "calibrate/fit_variant.h"

namespace oscar::calibrate {

// Σ of outer products [head_dim]² over `count` rows.
struct CovarianceSum {
  std::vector<double> sum;
  std::int64_t count = 0;
};

struct RotationTargets {
  std::vector<CovarianceSum> keys, values;  // [num_kv_heads]
  const char* key_name = "C_Q";
  const char* value_name = "C_S";
};

// Throws Error(kInvalidArgument) where the statistics hold no KᵀK or VᵀV and those are asked for.
RotationTargets rotation_targets(const LayerStatistics& stats, const FitVariant& variant);

}  // namespace oscar::calibrate

#include "calibrate/rotation_target.h"

#include "base/error.h"

namespace oscar::calibrate {
namespace {

// The sum over all heads for each of them.
void share(std::vector<CovarianceSum>* heads) {
  CovarianceSum all = heads->front();
  for (std::size_t head = 1; head < heads->size(); ++head) {
    for (std::size_t i = 0; i < all.sum.size(); ++i) all.sum[i] += (*heads)[head].sum[i];
    all.count += (*heads)[head].count;
  }
  for (CovarianceSum& head : *heads) head = all;
}

}  // namespace

RotationTargets rotation_targets(const LayerStatistics& stats, const FitVariant& variant) {
  RotationTargets targets;
  if (variant.raw_target) {
    targets.key_name = "KᵀK";
    targets.value_name = "VᵀV";
  }
  for (const HeadStatistics& head : stats.heads) {
    if (variant.raw_target && (head.key_covariance.empty() || head.value_covariance.empty())) {
      throw Error(
          ErrorCode::kInvalidArgument,
          "target=raw: these statistics hold no KᵀK and VᵀV; collect them with raw targets");
    }
    if (variant.raw_target) {
      targets.keys.push_back({head.key_covariance, head.num_tokens});
      targets.values.push_back({head.value_covariance, head.num_values});
    } else {
      targets.keys.push_back({head.query_covariance, head.num_queries});
      targets.values.push_back({head.output_covariance, head.num_queries});
    }
  }
  if (variant.per_layer) {
    share(&targets.keys);
    share(&targets.values);
  }
  return targets;
}

}  // namespace oscar::calibrate

#include "calibrate/value_fit.h"

#include <algorithm>

#include "base/error.h"

namespace oscar::calibrate {
namespace {

// Σ over query rows of ‖Σ_j p_j x_j‖² as it is over the whole text. A sampled key stands for w keys
// whose x are independent, so the terms of a key with itself count w times too often in the sample.
double attended_square(const MatrixF& weights, const VectorF& square_sum, const MatrixF& rows,
                       const SampleGeometry& geometry) {
  const double in_sample = (weights * rows).rowwise().squaredNorm().cast<double>().sum();
  const VectorF own = (1.0f - geometry.key_weight.cwiseInverse().array()) * square_sum.array() *
                      rows.rowwise().squaredNorm().array();
  return std::max(0.0, in_sample - own.cast<double>().sum());
}

}  // namespace

const char* value_basis_name(ValueBasis basis) {
  return basis == ValueBasis::kRotated ? "rotated" : "hadamard";
}

ValueHead value_head(const LayerStatistics& stats, const SampleGeometry& geometry,
                     const HeadSample& sample, int kv_head, const RotationTargets& targets,
                     bool subtract_mean, const std::string& name) {
  const HeadStatistics& sums = stats.heads[kv_head];
  const int head_dim = stats.shape.head_dim_v;
  ValueHead head;
  head.name = name;
  const CovarianceSum& target = targets.values[kv_head];
  head.basis = eigenbasis(target.sum, static_cast<double>(target.count), head_dim,
                          name + ", " + targets.value_name);
  head.mean = (Eigen::Map<const VectorD>(sums.value_mean_sum.data(), head_dim) /
               static_cast<double>(sums.num_values))
                  .cast<float>();
  head.centred = sample.values.rowwise() - head.mean.transpose();
  head.stored = subtract_mean ? head.centred : sample.values;
  head.first_coded = first_coded_key(stats, geometry);
  // Errors of different tokens are independent, so token j's counts with Σ p_j². Half of the weight
  // is even, so that a few much-attended tokens do not decide alone.
  head.row_weights = sample.coded_square_sum.tail(head.stored.rows() - head.first_coded);
  const float mean_weight = head.row_weights.mean();
  if (mean_weight > 0) head.row_weights /= mean_weight;
  head.row_weights.array() = 0.5f * head.row_weights.array() + 0.5f;
  return head;
}

MatrixF value_transform(ValueBasis basis, const ValueHead& head,
                        const std::vector<double>& mix_values) {
  const auto head_dim = static_cast<int>(head.mean.size());
  const Eigen::Map<const MatrixD> mix(mix_values.data(), head_dim, head_dim);
  if (basis == ValueBasis::kHadamard) return mix.cast<float>();
  return (head.basis.vectors * mix).cast<float>();
}

ClipFit fit_value_clip(const ValueHead& head, const MatrixF& transform, const PlaneLayout& layout,
                       TrialCodec* codec) {
  const MatrixF rows = head.stored.bottomRows(head.stored.rows() - head.first_coded);
  MatrixF rotated;
  codec->transform(rows, transform, &rotated);
  return fit_clip(rotated, layout, {.row_weights = &head.row_weights}, head.name + ", values",
                  codec);
}

double value_energy(const ValueHead& head) {
  return weighted_error(head.centred.bottomRows(head.centred.rows() - head.first_coded),
                        {.row_weights = &head.row_weights});
}

double output_error(const ValueHead& head, const MatrixF& transform, float clip_ratio,
                    const PlaneLayout& layout, const HeadSample& sample,
                    const SampleGeometry& geometry, TrialCodec* codec) {
  MatrixF rotated, error;
  codec->transform(head.stored, transform, &rotated);
  if (!codec->round_trip(rotated, layout, clip_ratio, &error)) {
    throw Error(ErrorCode::kCorrupt,
                head.name + ", values: a rotated row is not finite; calibrate again");
  }
  error -= rotated;
  return attended_square(sample.coded_weights, sample.coded_square_sum, error, geometry);
}

double output_energy(const HeadSample& sample, const SampleGeometry& geometry) {
  return attended_square(sample.weights, sample.square_sum, sample.values, geometry);
}

}  // namespace oscar::calibrate

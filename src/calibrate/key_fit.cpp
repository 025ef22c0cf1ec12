#include "calibrate/key_fit.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/error.h"

namespace oscar::calibrate {
namespace {

// Powers below this share of the head's mean power count as this much, so that a channel which
// never carries anything gets a finite factor (at most 1000^½ away from the others).
constexpr double kPowerFloor = 1e-6;

VectorD floored(const VectorD& power) {
  return power.cwiseMax(std::max(kPowerFloor * power.mean(), 1e-30));
}

// Every channel of a RoPE pair gets the pair's mean power, times `gain`.
void average_pairs(const RopeSpec& spec, double gain, VectorD* power) {
  for (int f = 0; f < spec.num_pairs(); ++f) {
    double& first = (*power)[spec.first(f)];
    double& second = (*power)[spec.second(f)];
    first = second = 0.5 * gain * (first + second);
  }
}

Eigen::Map<const MatrixD> as_matrix(const std::vector<double>& values, Eigen::Index dim) {
  return {values.data(), dim, dim};
}

// E|k − mean|² of each channel before RoPE.
VectorD key_variance(const HeadStatistics& stats) {
  const auto head_dim = static_cast<Eigen::Index>(stats.key_mean_sum.size());
  const auto count = static_cast<double>(stats.num_tokens);
  const Eigen::Map<const VectorD> sum(stats.key_mean_sum.data(), head_dim);
  const Eigen::Map<const VectorD> square_sum(stats.key_square_sum.data(), head_dim);
  return (square_sum / count - (sum / count).cwiseAbs2()).cwiseMax(0.0);
}

VectorD query_variance(const HeadStatistics& stats) {
  const auto head_dim = static_cast<Eigen::Index>(stats.key_mean_sum.size());
  return as_matrix(stats.query_covariance, head_dim).diagonal() /
         static_cast<double>(stats.num_queries);
}

// s_f = (E|k − mean|² / E q²)^¼, for each RoPE pair; for each channel where there is no rotation.
// A pair's power is the same before and after RoPE but for its magnitude. Over several heads: of
// their mean powers.
VectorD smoothing_factors(std::span<const HeadStatistics> heads, const RopeTable* rope) {
  VectorD key_power = key_variance(heads.front());
  VectorD query_power = query_variance(heads.front());
  for (const HeadStatistics& head : heads.subspan(1)) {
    key_power += key_variance(head);
    query_power += query_variance(head);
  }
  if (rope != nullptr) {
    const double magnitude = static_cast<double>(rope->spec().magnitude);
    average_pairs(rope->spec(), magnitude * magnitude, &key_power);
    average_pairs(rope->spec(), 1.0, &query_power);
  }
  return floored(key_power).cwiseQuotient(floored(query_power)).array().pow(0.25);
}

}  // namespace

const char* key_basis_name(KeyBasis basis) {
  switch (basis) {
    case KeyBasis::kRotated: return "rotated";
    case KeyBasis::kHadamard: return "hadamard";
    case KeyBasis::kSmoothed: return "smoothed";
  }
  return "";
}

KeyHead key_head(const LayerStatistics& stats, const SampleGeometry& geometry,
                 const HeadSample& sample, int kv_head, const RotationTargets& targets,
                 const KeyHeadOptions& options) {
  const HeadStatistics& sums = stats.heads[kv_head];
  const int head_dim = stats.shape.head_dim_k;
  KeyHead head;
  head.name = options.name;
  head.covariance =
      as_matrix(sums.query_covariance, head_dim) / static_cast<double>(sums.num_queries);
  const CovarianceSum& target = targets.keys[kv_head];
  head.basis = eigenbasis(target.sum, static_cast<double>(target.count), head_dim,
                          options.name + ", " + targets.key_name);
  head.mean = (Eigen::Map<const VectorD>(sums.key_mean_sum.data(), head_dim) /
               static_cast<double>(sums.num_tokens))
                  .cast<float>();
  const std::span<const HeadStatistics> heads = stats.heads;
  head.smoothing = smoothing_factors(
      options.shared_smoothing ? heads : heads.subspan(static_cast<std::size_t>(kv_head), 1),
      options.rope);
  head.centred = sample.keys;
  VectorF mean(head_dim);
  for (std::size_t i = 0; i < geometry.keys.size(); ++i) {
    mean = head.mean;
    if (options.rope != nullptr) {
      options.rope->rotate(mean.data(), stats.sample.key_positions[geometry.keys[i]]);
    }
    head.centred.row(static_cast<Eigen::Index>(i)) -= mean.transpose();
  }
  head.stored = options.subtract_mean ? head.centred : sample.keys;
  head.first_coded = first_coded_key(stats, geometry);
  return head;
}

KeyTransform key_transform(KeyBasis basis, const KeyHead& head,
                           const std::vector<double>& mix_values) {
  const auto head_dim = static_cast<int>(head.mean.size());
  const Eigen::Map<const MatrixD> mix(mix_values.data(), head_dim, head_dim);
  KeyTransform transform;
  switch (basis) {
    case KeyBasis::kRotated: transform.key = (head.basis.vectors * mix).cast<float>(); break;
    case KeyBasis::kHadamard: transform.key = mix.cast<float>(); break;
    case KeyBasis::kSmoothed:
      transform.key = (head.smoothing.cwiseInverse().asDiagonal() * mix).cast<float>();
      transform.query = (head.smoothing.asDiagonal() * mix).cast<float>();
      return transform;
  }
  transform.query = transform.key;
  return transform;
}

ClipFit fit_key_clip(const KeyHead& head, const KeyTransform& transform, const PlaneLayout& layout,
                     TrialCodec* codec) {
  const MatrixF rows = head.stored.bottomRows(head.stored.rows() - head.first_coded);
  MatrixF rotated;
  codec->transform(rows, transform.key, &rotated);
  const MatrixD query = transform.query.cast<double>();
  const MatrixF metric = (query.transpose() * head.covariance * query).cast<float>();
  return fit_clip(rotated, layout, {.metric = &metric}, head.name + ", keys", codec);
}

double key_energy(const KeyHead& head) {
  const MatrixF metric = head.covariance.cast<float>();
  return weighted_error(head.centred.bottomRows(head.centred.rows() - head.first_coded),
                        {.metric = &metric});
}

double attention_divergence(const KeyHead& head, const KeyTransform& transform, float clip_ratio,
                            const PlaneLayout& layout, const HeadSample& sample,
                            const SampleGeometry& geometry, TrialCodec* codec) {
  MatrixF rotated, error;
  codec->transform(head.stored, transform.key, &rotated);
  if (!codec->round_trip(rotated, layout, clip_ratio, &error)) {
    throw Error(ErrorCode::kCorrupt,
                head.name + ", keys: a rotated row is not finite; calibrate again");
  }
  error -= rotated;
  const MatrixF logit_error = (sample.queries * transform.query) * error.transpose();
  const auto p = sample.coded_weights.array();
  const auto weighted = (p * logit_error.array()).eval();
  const VectorD mean_error = weighted.matrix().rowwise().sum().cast<double>();
  const double square_error =
      (weighted * logit_error.array()).matrix().rowwise().sum().cast<double>().sum();
  // A sampled key stands for w keys whose errors are independent, so the square of the sum over the
  // sample holds its own terms w times too often.
  const VectorF own_share = 1.0f - geometry.key_weight.cwiseInverse().array();
  const double own = (weighted.square().matrix() * own_share).cast<double>().sum();
  const double variance = square_error - mean_error.squaredNorm() + own;
  return 0.5 * variance / static_cast<double>(sample.queries.rows());
}

}  // namespace oscar::calibrate

#include "calibrate/clip_fit.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"

namespace oscar::calibrate {
namespace {

// From no clip to well below the optimum of four levels on a Gaussian row, about 0.865.
constexpr double kCoarseRatios[] = {1.0, 0.97, 0.94, 0.91, 0.88, 0.84, 0.80, 0.75, 0.70, 0.60};

// A ratio inside (rank − 1, rank] / head_dim, away from both ends, so that rounding cannot move the
// rank that the encoder takes.
float ratio_of(int rank, int head_dim) {
  return rank == head_dim ? 1.0f : static_cast<float>((rank - 0.5) / head_dim);
}

}  // namespace

double weighted_error(const MatrixF& error, const ErrorWeights& weights) {
  VectorF row_errors;
  if (weights.metric == nullptr) {
    row_errors = error.rowwise().squaredNorm();
  } else {
    row_errors = (error * *weights.metric).cwiseProduct(error).rowwise().sum();
  }
  if (weights.row_weights == nullptr) return row_errors.cast<double>().sum();
  return row_errors.cast<double>().dot(weights.row_weights->cast<double>());
}

ClipFit fit_clip(const MatrixF& rows, const PlaneLayout& layout, const ErrorWeights& weights,
                 const std::string& what, TrialCodec* codec) {
  const auto head_dim = static_cast<int>(rows.cols());
  std::map<int, double> error_of;  // by rank
  MatrixF decoded;
  const auto measure = [&](int rank) {
    if (error_of.contains(rank)) return;
    if (!codec->round_trip(rows, layout, ratio_of(rank, head_dim), &decoded)) {
      throw Error(ErrorCode::kCorrupt, what + ": a rotated row is not finite; calibrate again");
    }
    decoded -= rows;
    error_of[rank] = weighted_error(decoded, weights);
  };
  // On equal errors the larger rank wins: less is clipped.
  const auto best_rank = [&] {
    auto found = error_of.rbegin();
    for (auto it = error_of.rbegin(); it != error_of.rend(); ++it) {
      if (it->second < found->second) found = it;
    }
    return found->first;
  };
  for (const double ratio : kCoarseRatios) {
    measure(static_cast<int>(std::ceil(ratio * head_dim)));
  }
  const int middle = best_rank();
  const auto at = error_of.find(middle);
  const int below = at == error_of.begin() ? middle : std::prev(at)->first;
  const int above = std::next(at) == error_of.end() ? middle : std::next(at)->first;
  measure((below + middle + 1) / 2);
  measure((middle + above) / 2);
  const int rank = best_rank();
  return {ratio_of(rank, head_dim), error_of[rank]};
}

}  // namespace oscar::calibrate

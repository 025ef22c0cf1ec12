// Values of one KV head: mean, candidate transforms, and what each loses.
#pragma once

#include <string>
#include <vector>

#include "calibrate/clip_fit.h"
#include "calibrate/collector.h"
#include "calibrate/eigenbasis.h"
#include "calibrate/head_sample.h"
#include "calibrate/matrix.h"
#include "calibrate/rotation_target.h"
#include "methods/definition.h"

namespace oscar::calibrate {

using methods::ValueBasis;
const char* value_basis_name(ValueBasis basis);

struct ValueHead {
  std::string name;
  Eigenbasis basis;     // of the target: C_S, unless an ablation says otherwise
  VectorF mean;         // [head_dim]
  MatrixF centred;      // sampled values, less the mean
  MatrixF stored;       // sampled values, less the mean where the method subtracts it
  VectorF row_weights;  // [num_keys − first_coded] what an error of a coded row weighs
  std::int64_t first_coded = 0;
};

ValueHead value_head(const LayerStatistics& stats, const SampleGeometry& geometry,
                     const HeadSample& sample, int kv_head, const RotationTargets& targets,
                     bool subtract_mean, const std::string& name);

// v̂ = ṽ · thisᵀ: orthogonal. mix: H·P, or H, [head_dim]².
MatrixF value_transform(ValueBasis basis, const ValueHead& head, const std::vector<double>& mix);

// Fits the clip for the layout's bits; the error is the weighted squared error of the coded rows.
ClipFit fit_value_clip(const ValueHead& head, const MatrixF& transform, const PlaneLayout& layout,
                       TrialCodec* codec);

// What that error is relative to: the weighted energy of the coded rows about their mean.
double value_energy(const ValueHead& head);

// Σ ‖Σ_j p_j (v̂_j − v_j)‖² over the sampled query rows.
double output_error(const ValueHead& head, const MatrixF& transform, float clip_ratio,
                    const PlaneLayout& layout, const HeadSample& sample,
                    const SampleGeometry& geometry, TrialCodec* codec);

// Σ ‖o‖² over the same query rows.
double output_energy(const HeadSample& sample, const SampleGeometry& geometry);

}  // namespace oscar::calibrate

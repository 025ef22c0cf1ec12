// Keys of one KV head: mean, candidate transforms, and what each loses.
#pragma once

#include <string>
#include <vector>

#include "calibrate/clip_fit.h"
#include "calibrate/collector.h"
#include "calibrate/eigenbasis.h"
#include "calibrate/head_sample.h"
#include "calibrate/matrix.h"
#include "calibrate/rotation_target.h"
#include "kernels/rope_table.h"
#include "methods/definition.h"

namespace oscar::calibrate {

using methods::KeyBasis;
const char* key_basis_name(KeyBasis basis);

// What the sums say about a head, and its sampled keys.
struct KeyHead {
  std::string name;    // "layer 3, KV head 1"
  MatrixD covariance;  // C_Q
  Eigenbasis basis;    // of the target: C_Q, unless an ablation says otherwise
  VectorF mean;        // [head_dim] before RoPE; after RoPE where that is not known
  VectorD smoothing;   // s: [head_dim], equal within a RoPE pair
  MatrixF centred;     // sampled keys after RoPE, less the mean at their position
  MatrixF stored;      // what is encoded: `centred`, or the keys where the method keeps their mean
  std::int64_t first_coded = 0;  // rows before it are exact at run time
};

struct KeyHeadOptions {
  const RopeTable* rope = nullptr;  // null: the layer's RoPE is not known
  bool subtract_mean = false;
  bool shared_smoothing = false;  // one s for all KV heads of the layer
  std::string name;
};

KeyHead key_head(const LayerStatistics& stats, const SampleGeometry& geometry,
                 const HeadSample& sample, int kv_head, const RotationTargets& targets,
                 const KeyHeadOptions& options);

struct KeyTransform {
  MatrixF key;    // k̃ = k · this
  MatrixF query;  // q̃ = q · this; equal to `key` where that is orthogonal
};

// mix: H·P, or H, [head_dim]².
KeyTransform key_transform(KeyBasis basis, const KeyHead& head, const std::vector<double>& mix);

// Fits the clip for the layout's bits; the error is Σ E[(q·(k − k̂))²] over the coded rows.
ClipFit fit_key_clip(const KeyHead& head, const KeyTransform& transform, const PlaneLayout& layout,
                     TrialCodec* codec);

// Σ E[(q·k)²] over the same rows about the mean key: what the error is relative to.
double key_energy(const KeyHead& head);

// ½ Var_p(q·(k̂ − k)), in nats, averaged over the sampled queries: the KL divergence of attention to
// second order.
double attention_divergence(const KeyHead& head, const KeyTransform& transform, float clip_ratio,
                            const PlaneLayout& layout, const HeadSample& sample,
                            const SampleGeometry& geometry, TrialCodec* codec);

}  // namespace oscar::calibrate

// From statistics to an artefact, and the data-free methods.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "calibrate/collector.h"
#include "calibrate/fit_variant.h"
#include "format/artefact.h"
#include "format/kv_spec.h"

namespace oscar::calibrate {

struct FitOptions {
  Method method = Method::kOscarPlus;
  FitVariant variant = {};   // what an ablation changes
  bool trellis = false;      // trellis codes, 2 bits; of methods without zero points
  bool with_losses = false;  // also what every layer loses at 2, 3 and 4 bits, for a bit budget
  int num_threads = 1;
  // Called from worker threads, one at a time; false stops with Error(kInterrupted).
  std::function<bool(int layers_done, int num_layers)> progress = {};
};

// oscar: R = U·H·P per KV head from C_Q and C_S, clip fitted, affine codes (2605.17757).
// oscar-plus: RoPE-aware key mean, value mean, key smoothing where it helps this model, unbiased
// key scale, no zero point. Throws Error(kCorrupt) naming layer and head where statistics are not
// finite or empty.
Artefact fit(const Statistics& statistics, const ModelFingerprint& model,
             const FitOptions& options);

// Throws Error(kInvalidArgument) naming the methods that FitOptions::trellis is for.
void check_trellis(Method method);

// Whether the method needs statistics of the model, and which do.
bool needs_statistics(Method method);
std::string calibrated_method_names();  // "oscar, oscar-plus, ..."
std::string data_free_method_names();

// The artefact of a method that needs shapes alone. `layers` gives the model's layer index of each.
// Throws Error(kInvalidArgument) for a method that needs statistics, Error(kUnsupported) naming
// what the method cannot do.
struct LayerIndexShape {
  int layer;
  LayerShape shape;
};
Artefact make_data_free(Method method, const ModelFingerprint& model,
                        const std::vector<LayerIndexShape>& layers);
// The same for any method, without what only statistics can say: for sizes and refusals.
Artefact make_uncalibrated(Method method, const ModelFingerprint& model,
                           const std::vector<LayerIndexShape>& layers);

// How a method stores keys and values before any override. head_dims: of all layers.
struct DefaultQuants {
  QuantSpec k, v;
};
DefaultQuants default_quants(Method method, const std::vector<int>& k_dims,
                             const std::vector<int>& v_dims);

// Applies the spec's overrides (bits, group, leave-outs, trellis, unbiased). no_hadamard needs
// artefact.hadamard; removing H keeps the eigenbasis: R·(H·P)ᵀ. group_size is clamped to the
// largest legal divisor of the head size, never silently above what was asked: a `group=N` that
// does not divide every head size is refused. Throws Error(kInvalidArgument) where an option does
// not fit.
void apply_kv_spec(const KvSpec& spec, Artefact* artefact);

}  // namespace oscar::calibrate

// From statistics to an artefact: every layer on its own, the choice of transforms over the model.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <string>

#include "base/error.h"
#include "base/parallel.h"
#include "calibrate/layer_fit.h"
#include "calibrate/methods.h"
#include "methods/definition.h"

namespace oscar::calibrate {
namespace {

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

// Fits the layers on several threads; the first layer that failed, in the model's order, decides
// the error.
std::vector<LayerFit> fit_layers(const std::vector<LayerInput>& inputs, const Recipe& recipe,
                                 const FitOptions& options) {
  const auto num_layers = static_cast<int>(inputs.size());
  std::vector<LayerFit> fits(inputs.size());
  std::vector<std::exception_ptr> errors(inputs.size());
  std::mutex mutex;
  int num_done = 0;
  std::atomic<bool> stopped = false;
  parallel_for(options.num_threads, num_layers, [&](std::int64_t index, int) {
    if (stopped) return;
    try {
      fits[index] = fit_layer(inputs[index], recipe);
      const std::lock_guard lock(mutex);
      if (options.progress && !options.progress(++num_done, num_layers)) stopped = true;
    } catch (...) {
      errors[index] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  if (stopped) {
    throw Error(ErrorCode::kInterrupted, "calibration was interrupted; nothing is kept");
  }
  return fits;
}

// A table for each of the statistics' RoPEs, long enough for every sampled position.
std::vector<std::unique_ptr<RopeTable>> rope_tables(const Statistics& statistics) {
  std::int32_t max_position = 0;
  for (const auto& [layer, stats] : statistics.layers) {
    for (const std::int32_t position : stats.sample.key_positions) {
      max_position = std::max(max_position, position);
    }
  }
  std::vector<std::unique_ptr<RopeTable>> tables;
  for (const RopeSpec& spec : statistics.ropes) {
    tables.push_back(std::make_unique<RopeTable>(spec, max_position));
  }
  return tables;
}

std::vector<LayerInput> layer_inputs(const Statistics& statistics,
                                     const std::vector<std::unique_ptr<RopeTable>>& tables) {
  std::vector<LayerInput> inputs;
  for (const auto& [layer, stats] : statistics.layers) {
    if (stats.rope >= static_cast<int>(tables.size())) {
      throw Error(ErrorCode::kCorrupt, "layer " + std::to_string(layer) + ": RoPE " +
                                           std::to_string(stats.rope) + " is not among the " +
                                           std::to_string(tables.size()) + " of the statistics");
    }
    inputs.push_back({layer, &stats, stats.rope < 0 ? nullptr : tables[stats.rope].get()});
    check_statistics(inputs.back());
  }
  return inputs;
}

// "hadamard 0.031 in 4 layers, smoothed 0.012 in 26 layers": the mean score of each candidate and
// in how many layers it was taken.
template <typename Basis>
std::string candidates_text(const std::vector<Basis>& candidates, const std::vector<LayerFit>& fits,
                            std::vector<double> LayerFit::*scores, std::size_t LayerFit::*choice,
                            const char* (*name)(Basis)) {
  std::string text;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    double sum = 0;
    std::size_t num_taken = 0;
    for (const LayerFit& fit : fits) {
      sum += (fit.*scores)[i];
      num_taken += fit.*choice == i ? 1 : 0;
    }
    text += (i == 0 ? "" : ", ") + std::string(name(candidates[i])) + " " +
            number_text(sum / static_cast<double>(fits.size())) + " in " +
            std::to_string(num_taken) + " layers";
  }
  return text;
}

std::string means_text(const std::vector<LayerInput>& inputs, const Recipe& recipe) {
  if (!recipe.subtract_key_mean) return "none";
  std::string static_layers;
  std::size_t num_static = 0;
  for (const LayerInput& input : inputs) {
    if (input.rope != nullptr) continue;
    static_layers += (num_static++ == 0 ? "" : ", ") + std::to_string(input.layer);
  }
  if (num_static == 0) return "before RoPE";
  if (num_static == inputs.size()) return "static, after RoPE: the model's RoPE is not known";
  return "before RoPE; static, after RoPE, in layers " + static_layers +
         ", whose RoPE is not known";
}

// A method without candidates: its own rotations, and the mean key before RoPE.
Artefact fit_means(const Statistics& statistics, const std::vector<LayerInput>& inputs,
                   const ModelFingerprint& model, const Recipe& recipe) {
  std::vector<LayerIndexShape> shapes;
  for (const LayerInput& input : inputs) shapes.push_back({input.layer, input.stats->shape});
  Artefact artefact = make_uncalibrated(recipe.method, model, shapes);
  artefact.ropes = statistics.ropes;
  std::int64_t num_tokens = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const LayerStatistics& stats = *inputs[i].stats;
    ArtefactLayer& layer = artefact.layers[i];
    layer.rope = stats.rope;
    for (const HeadStatistics& head : stats.heads) {
      for (const double sum : head.key_mean_sum) {
        layer.k_mean.push_back(static_cast<float>(sum / static_cast<double>(head.num_tokens)));
      }
    }
    num_tokens = std::max(num_tokens, stats.num_tokens);
  }
  artefact.info["fit.tokens"] = std::to_string(num_tokens);
  artefact.info["fit.rows_left_out"] = std::to_string(statistics.num_non_finite);
  return artefact;
}

bool has_trellis(Method method) {
  const methods::Definition& definition = methods::definition(method);
  return definition.has_recipe() && definition.k.codebook == Codebook::kSymmetric &&
         definition.v.codebook == Codebook::kSymmetric;
}

}  // namespace

void check_trellis(Method method) {
  if (has_trellis(method)) return;
  std::string legal;
  for (const Method other : all_methods()) {
    if (has_trellis(other)) legal += (legal.empty() ? "" : ", ") + std::string(method_name(other));
  }
  throw Error(ErrorCode::kInvalidArgument,
              std::string("trellis: ") + method_name(method) +
                  " is not fitted with levels symmetric about zero; legal: " + legal);
}

Artefact fit(const Statistics& statistics, const ModelFingerprint& model,
             const FitOptions& options) {
  if (statistics.layers.empty()) {
    throw Error(ErrorCode::kCorrupt, "the statistics hold no layer; calibrate on a text first");
  }
  const auto num_layers = static_cast<int>(statistics.layers.size());
  if (model.num_layers != 0 && model.num_layers != num_layers) {
    throw Error(ErrorCode::kMismatch, "the statistics hold " + std::to_string(num_layers) +
                                          " layers; the model has " +
                                          std::to_string(model.num_layers));
  }
  std::vector<int> k_dims, v_dims;
  for (const auto& [layer, stats] : statistics.layers) {
    k_dims.push_back(stats.shape.head_dim_k);
    v_dims.push_back(stats.shape.head_dim_v);
  }
  Recipe recipe = recipe_for(options.method, options.variant, k_dims, v_dims);
  recipe.with_losses = options.with_losses;
  if (options.trellis) {
    check_trellis(options.method);
    recipe.k_quant.codebook = recipe.v_quant.codebook = Codebook::kTrellis;
  }
  const auto tables = rope_tables(statistics);
  const std::vector<LayerInput> inputs = layer_inputs(statistics, tables);

  if (recipe.key_candidates.empty()) return fit_means(statistics, inputs, model, recipe);
  std::vector<LayerFit> fits = fit_layers(inputs, recipe, options);

  Artefact artefact;
  artefact.method = recipe.method;
  artefact.model = model;
  artefact.k_quant = recipe.k_quant;
  artefact.v_quant = recipe.v_quant;
  artefact.hadamard = true;
  artefact.bit_reversal = !recipe.variant.no_permutation;
  artefact.ropes = statistics.ropes;
  std::int64_t num_tokens = 0;
  bool windowed = true;
  int num_value_means = 0;
  for (const auto& [layer, stats] : statistics.layers) {
    num_tokens = std::max(num_tokens, stats.num_tokens);
  }
  for (LayerFit& layer : fits) {
    windowed = windowed && layer.windowed;
    num_value_means += layer.value_mean ? 1 : 0;
    artefact.key_smoothing =
        artefact.key_smoothing || recipe.key_candidates[layer.key_choice] == KeyBasis::kSmoothed;
  }
  if (recipe.variant.any()) artefact.info["fit.ablation"] = recipe.variant.text();
  artefact.info["fit.tokens"] = std::to_string(num_tokens);
  artefact.info["fit.rows_left_out"] = std::to_string(statistics.num_non_finite);
  artefact.info["fit.windows"] = windowed ? "sink and recent tokens judged as exact"
                                          : "none: the text is too short to judge behind windows";
  artefact.info["fit.key_mean"] = means_text(inputs, recipe);
  artefact.info["fit.value_mean"] =
      "in " + std::to_string(num_value_means) + " of " + std::to_string(fits.size()) + " layers";
  artefact.info["fit.keys"] = candidates_text(recipe.key_candidates, fits, &LayerFit::key_scores,
                                              &LayerFit::key_choice, key_basis_name);
  artefact.info["fit.values"] =
      candidates_text(recipe.value_candidates, fits, &LayerFit::value_scores,
                      &LayerFit::value_choice, value_basis_name);
  for (LayerFit& layer : fits) artefact.layers.push_back(std::move(layer.layer));
  return artefact;
}

}  // namespace oscar::calibrate

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

namespace oscar::calibrate {
namespace {

// A layer leaves the model's choice of key transform only for one that is clearly better there: the
// scores come from a sample.
constexpr double kLayerMargin = 0.8;

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

// Runs the layers of one pass on several threads; the first layer that failed, in the model's
// order, decides the error. Progress runs from `done_before` on, out of `num_units`, shown as
// layers.
class Runner {
 public:
  Runner(const FitOptions& options, int num_layers) : options_(options), num_layers_(num_layers) {}

  template <typename Body>
  void run_pass(const Body& body) {
    std::vector<std::exception_ptr> errors(static_cast<std::size_t>(num_layers_));
    parallel_for(options_.num_threads, num_layers_, [&](std::int64_t index, int) {
      if (stopped_) return;
      try {
        body(static_cast<std::size_t>(index));
        report();
      } catch (...) {
        errors[index] = std::current_exception();
      }
    });
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
    if (stopped_)
      throw Error(ErrorCode::kInterrupted, "calibration was interrupted; nothing is kept");
  }

 private:
  static constexpr int kPasses = 2;

  void report() {
    const std::lock_guard lock(mutex_);
    ++units_done_;
    if (options_.progress && !options_.progress(units_done_ / kPasses, num_layers_))
      stopped_ = true;
  }

  const FitOptions& options_;
  int num_layers_;
  std::mutex mutex_;
  int units_done_ = 0;
  std::atomic<bool> stopped_ = false;
};

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

std::size_t lowest(const std::vector<double>& scores) {
  return static_cast<std::size_t>(std::min_element(scores.begin(), scores.end()) - scores.begin());
}

// Sums of each candidate's scores over the layers.
std::vector<double> totals(const std::vector<LayerScores>& layers,
                           std::vector<double> LayerScores::*side) {
  std::vector<double> sums((layers.front().*side).size());
  for (const LayerScores& layer : layers) {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += (layer.*side)[i];
  }
  return sums;
}

template <typename Basis>
std::string candidates_text(const std::vector<Basis>& candidates, const std::vector<double>& sums,
                            std::size_t num_layers, const char* (*name)(Basis)) {
  std::string text;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::string(name(candidates[i])) + " " +
            number_text(sums[i] / static_cast<double>(num_layers));
  }
  return text;
}

std::string means_text(const std::vector<LayerInput>& inputs, const Recipe& recipe) {
  if (!recipe.subtract_means) return "none";
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

}  // namespace

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
  const Recipe recipe = recipe_for(options.method, k_dims, v_dims);
  const auto tables = rope_tables(statistics);
  const std::vector<LayerInput> inputs = layer_inputs(statistics, tables);

  Runner runner(options, num_layers);
  std::vector<LayerScores> scores(inputs.size());
  runner.run_pass([&](std::size_t i) { scores[i] = score_layer(inputs[i], recipe); });

  const std::vector<double> key_totals = totals(scores, &LayerScores::keys);
  const std::vector<double> value_totals = totals(scores, &LayerScores::values);
  const std::size_t key_winner = lowest(key_totals);
  const std::size_t value_winner = lowest(value_totals);
  std::vector<KeyBasis> key_bases(inputs.size(), recipe.key_candidates[key_winner]);
  std::string choice = key_basis_name(recipe.key_candidates[key_winner]);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::size_t own = lowest(scores[i].keys);
    if (scores[i].keys[own] >= kLayerMargin * scores[i].keys[key_winner]) continue;
    key_bases[i] = recipe.key_candidates[own];
    choice += "; layer " + std::to_string(inputs[i].layer) + " " + key_basis_name(key_bases[i]);
  }

  Artefact artefact;
  artefact.method = recipe.method;
  artefact.model = model;
  artefact.k_quant = recipe.k_quant;
  artefact.v_quant = recipe.v_quant;
  artefact.hadamard = true;
  artefact.key_smoothing =
      std::find(key_bases.begin(), key_bases.end(), KeyBasis::kSmoothed) != key_bases.end();
  artefact.ropes = statistics.ropes;
  artefact.layers.resize(inputs.size());
  runner.run_pass([&](std::size_t i) {
    artefact.layers[i] =
        fit_layer(inputs[i], recipe, key_bases[i], recipe.value_candidates[value_winner]);
  });

  std::int64_t num_tokens = 0;
  bool windowed = true;
  for (const auto& [layer, stats] : statistics.layers) {
    num_tokens = std::max(num_tokens, stats.num_tokens);
  }
  for (const LayerScores& layer : scores) windowed = windowed && layer.windowed;
  artefact.info["fit.tokens"] = std::to_string(num_tokens);
  artefact.info["fit.rows_left_out"] = std::to_string(statistics.num_non_finite);
  artefact.info["fit.windows"] = windowed ? "sink and recent tokens judged as exact"
                                          : "none: the text is too short to judge behind windows";
  artefact.info["fit.key_mean"] = means_text(inputs, recipe);
  artefact.info["fit.key_candidates"] =
      candidates_text(recipe.key_candidates, key_totals, inputs.size(), key_basis_name);
  artefact.info["fit.key_choice"] = choice;
  artefact.info["fit.value_candidates"] =
      candidates_text(recipe.value_candidates, value_totals, inputs.size(), value_basis_name);
  artefact.info["fit.value_choice"] = value_basis_name(recipe.value_candidates[value_winner]);
  return artefact;
}

}  // namespace oscar::calibrate

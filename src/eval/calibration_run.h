// Calibration of a model: texts through the model with exact keys and values, statistics to an
// artefact.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "calibrate/collector.h"
#include "calibrate/fit_variant.h"
#include "eval/text.h"
#include "eval/workbench.h"

namespace oscar::eval {

// Below this the covariances of a head of 256 channels are too noisy to rotate by.
inline constexpr std::int64_t kMinCalibrationTokens = 512;
inline constexpr std::int64_t kDefaultCalibrationTokens = 8192;
// A layer is named where its mean key's norm is this many times the keys' deviation from it.
inline constexpr double kLargeMeanKey = 8.0;

struct CalibrationOptions {
  Method method = Method::kOscarPlus;
  calibrate::FitVariant variant = {};  // what an ablation changes
  bool trellis = false;                // trellis codes; without bit_budget
  std::int64_t num_tokens = kDefaultCalibrationTokens;
  std::uint64_t seed = 1;
  // Stored bits a value that are spent over layers, keys and values by measured sensitivity, on
  // kSensitivityTokens of the tokens that are held out for it; 0: the method's bits everywhere.
  double bit_budget = 0;
  // Tokens through the model, then layers fitted (stage "fitting layers"). May be null.
  std::function<void(std::int64_t done, std::int64_t total)> progress;
  std::function<void(const std::string& stage)> stage;
};

struct CalibrationResult {
  Artefact artefact;
  std::int64_t tokens_used = 0, tokens_asked = 0;
  std::vector<std::string> warnings;  // one line each
};

// The texts share the tokens evenly; what a short one leaves goes to the others. Longer stretches
// than the model's context are cut into several. Throws Error(kInvalidArgument) when the texts have
// fewer than kMinCalibrationTokens tokens, naming them and their counts.
CalibrationResult calibrate_model(Workbench* workbench, const std::vector<const TextFile*>& texts,
                                  const CalibrationOptions& options);

// One pass of the model over the texts, for several fits. The statistics stay in memory.
class Calibration {
 public:
  // Of `options` the tokens, seed and progress count. raw_targets: what target=raw needs. Throws as
  // calibrate_model does. The texts are used until the constructor returns.
  Calibration(Workbench* workbench, const std::vector<const TextFile*>& texts,
              const CalibrationOptions& options, bool raw_targets);
  // bit_budget: as in CalibrationOptions; not 0 where the options' one was not.
  CalibrationResult fit(Method method, const calibrate::FitVariant& variant,
                        double bit_budget = 0) const;

 private:
  Workbench* workbench_;
  CalibrationOptions options_;
  calibrate::Collector collector_;
  std::map<std::string, std::string> info_;
  std::vector<llama_token> held_out_;  // of a bit budget
  std::int64_t tokens_used_ = 0, tokens_asked_ = 0;

  void spend_bits(double budget, Artefact* artefact) const;
};

// One line for every layer whose mean key is large (see kLargeMeanKey).
std::vector<std::string> large_mean_warnings(const calibrate::Statistics& statistics,
                                             Method method);

// How many tokens each text gives when it has `available[i]`: together `wanted`, or all there are.
std::vector<std::int64_t> share_tokens(const std::vector<std::int64_t>& available,
                                       std::int64_t wanted);

}  // namespace oscar::eval

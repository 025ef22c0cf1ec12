#include "eval/calibration_run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "base/hash.h"
#include "calibrate/bit_budget.h"
#include "calibrate/methods.h"
#include "eval/bit_sensitivity.h"
#include "methods/definition.h"

namespace oscar::eval {
namespace {

struct Tokens {
  std::vector<llama_token> ids, held_out;  // held_out: the ends of the texts' shares
  std::int64_t asked = 0;
};

Tokens gather(Workbench* workbench, const std::vector<const TextFile*>& texts, std::int64_t wanted,
              std::int64_t num_held_out) {
  std::vector<std::vector<llama_token>> all;
  std::vector<std::int64_t> available;
  std::string counts;
  for (const TextFile* text : texts) {
    all.push_back(tokenize(workbench->vocab(), text->bytes(), wanted, /*parse_special=*/false));
    available.push_back(static_cast<std::int64_t>(all.back().size()));
    counts += (counts.empty() ? "" : ", ") + text->path() + ": has " +
              std::to_string(available.back()) + " tokens";
  }
  Tokens tokens;
  tokens.asked = wanted;
  const std::vector<std::int64_t> shares = share_tokens(available, wanted);
  std::int64_t total = 0, held = 0;
  for (const std::int64_t share : shares) total += share;
  if (total < kMinCalibrationTokens + num_held_out) {
    throw Error(ErrorCode::kInvalidArgument,
                counts + "; calibration needs at least " +
                    std::to_string(kMinCalibrationTokens + num_held_out) +
                    (num_held_out > 0 ? ", " + std::to_string(num_held_out) +
                                            " of them to measure "
                                            "layers on"
                                      : ""));
  }
  std::int64_t seen = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    seen += shares[i];
    const std::int64_t held_here = num_held_out * seen / total - held;
    held += held_here;
    const auto end = all[i].begin() + shares[i];
    tokens.ids.insert(tokens.ids.end(), all[i].begin(), end - held_here);
    tokens.held_out.insert(tokens.held_out.end(), end - held_here, end);
  }
  return tokens;
}

// Feeds the collector while it lives, whatever is thrown.
class Collecting {
 public:
  Collecting(const Plugin& plugin, calibrate::Collector* collector) : plugin_(plugin) {
    plugin_.set_collector(collector);
  }
  ~Collecting() { plugin_.set_collector(nullptr); }
  Collecting(const Collecting&) = delete;
  Collecting& operator=(const Collecting&) = delete;

 private:
  const Plugin& plugin_;
};

void run_model(Workbench* workbench, const std::vector<llama_token>& tokens,
               const CalibrationOptions& options, calibrate::Collector* collector) {
  const auto total = static_cast<std::int64_t>(tokens.size());
  Model& model = workbench->model(Placement::kPlugin);
  const std::int64_t length = std::min(total, model.context_length());
  const std::unique_ptr<Context> context = workbench->open_exact(length);
  const Collecting collecting(workbench->host().plugin(), collector);
  for (std::int64_t start = 0; start < total;) {
    if (context->num_tokens() == length) context->clear();
    const std::int64_t count =
        std::min({kBatchTokens, total - start, length - context->num_tokens()});
    context->decode({tokens.data() + start, static_cast<std::size_t>(count)}, 0);
    start += count;
    if (options.progress) options.progress(start, total);
  }
  if (collector->statistics().num_non_finite > 0) {
    throw Error(ErrorCode::kCorrupt,
                model.path() + ": " + std::to_string(collector->statistics().num_non_finite) +
                    " rows of keys, values or queries held NaN or Inf; its weights are broken");
  }
}

std::string figure(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::map<std::string, std::string> text_info(const std::vector<const TextFile*>& texts,
                                             const std::string& model_path, std::uint64_t seed) {
  Hasher hasher;
  std::string names;
  for (const TextFile* text : texts) {
    hasher.update(text->bytes().data(), text->bytes().size());
    names += (names.empty() ? "" : ", ") + std::filesystem::path(text->path()).filename().string();
  }
  return {{"text_hash", hasher.hex()},
          {"text_files", names},
          {"seed", std::to_string(seed)},
          {"date", utc_now()},
          {"model_file", std::filesystem::path(model_path).filename().string()},
          {"llama_cpp", llama_version_text()}};
}

calibrate::CollectorOptions collector_options(const CalibrationOptions& options, bool raw_targets) {
  calibrate::CollectorOptions result;
  result.seed = options.seed;
  result.raw_targets = raw_targets;
  return result;
}

double squared_norm(const float* row, int size) {
  double sum = 0;
  for (int i = 0; i < size; ++i) sum += static_cast<double>(row[i]) * static_cast<double>(row[i]);
  return sum;
}

// ‖mean‖ / √E‖k − mean‖², the largest over the layer's heads. RoPE keeps norms, so E‖k‖² may come
// from keys after it and the mean from before it.
double mean_key_ratio(const calibrate::LayerStatistics& layer) {
  const calibrate::LayerShape& shape = layer.shape;
  const auto num_keys = static_cast<std::int64_t>(layer.sample.key_positions.size());
  double largest = 0;
  for (int head = 0; head < shape.num_kv_heads; ++head) {
    const calibrate::HeadStatistics& statistics = layer.heads[static_cast<std::size_t>(head)];
    if (statistics.num_tokens == 0 || num_keys == 0) continue;
    double mean_squared = 0;
    for (const double sum : statistics.key_mean_sum) {
      const double mean = sum / static_cast<double>(statistics.num_tokens);
      mean_squared += mean * mean;
    }
    double squared = 0;
    for (std::int64_t key = 0; key < num_keys; ++key) {
      squared += squared_norm(&layer.sample.keys[static_cast<std::size_t>(
                                  (key * shape.num_kv_heads + head) * shape.head_dim_k)],
                              shape.head_dim_k);
    }
    const double variance = squared / static_cast<double>(num_keys) - mean_squared;
    if (variance > 0) largest = std::max(largest, std::sqrt(mean_squared / variance));
  }
  return largest;
}

}  // namespace

std::vector<std::int64_t> share_tokens(const std::vector<std::int64_t>& available,
                                       std::int64_t wanted) {
  // Shortest first: what it leaves of its even share is shared among those that follow.
  std::vector<std::size_t> order(available.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return available[a] < available[b]; });
  std::vector<std::int64_t> shares(available.size(), 0);
  std::int64_t texts_left = static_cast<std::int64_t>(available.size());
  for (const std::size_t text : order) {
    shares[text] = std::min(available[text], wanted / texts_left);
    wanted -= shares[text];
    --texts_left;
  }
  return shares;
}

std::vector<std::string> large_mean_warnings(const calibrate::Statistics& statistics,
                                             Method method) {
  std::vector<std::string> warnings;
  for (const auto& [index, layer] : statistics.layers) {
    const double ratio = mean_key_ratio(layer);
    if (ratio < kLargeMeanKey) continue;
    char figure[32];
    std::snprintf(figure, sizeof figure, "%.1f", ratio);
    std::string line = "layer " + std::to_string(index) + ": the mean key is " + figure +
                       " times the keys' deviation from it; ";
    line += methods::definition(method).recipe.subtract_key_mean
                ? std::string(method_name(method)) +
                      " keeps it apart, other methods lose these keys below 16 bits (:k16v2)"
                : std::string(method_name(method)) +
                      " keeps it in the codes, so expect poor answers; use oscar-plus, or exact "
                      "keys (:k16v2)";
    warnings.push_back(line);
  }
  return warnings;
}

Calibration::Calibration(Workbench* workbench, const std::vector<const TextFile*>& texts,
                         const CalibrationOptions& options, bool raw_targets)
    : workbench_(workbench),
      options_(options),
      collector_(collector_options(options, raw_targets)) {
  check_packed_cache_supports(workbench->file());
  const Tokens tokens =
      gather(workbench, texts, options.num_tokens, options.bit_budget > 0 ? kSensitivityTokens : 0);
  held_out_ = tokens.held_out;
  tokens_used_ = static_cast<std::int64_t>(tokens.ids.size() + held_out_.size());
  tokens_asked_ = tokens.asked;
  info_ = text_info(texts, workbench->file().path, options.seed);
  run_model(workbench, tokens.ids, options, &collector_);
}

void Calibration::spend_bits(double budget, Artefact* artefact) const {
  calibrate::check_budget(budget, *artefact);
  if (options_.stage) options_.stage("measuring layers, passes");
  calibrate::scale_losses(measure_sensitivity(workbench_, *artefact, held_out_, options_.progress),
                          artefact);
  calibrate::assign_bits(budget, artefact);
  Artefact fewest = *artefact;
  for (ArtefactLayer& layer : fewest.layers) layer.k_bits = layer.v_bits = 2;
  auto& info = artefact->info;
  info["bits.budget"] = figure(budget);
  info["bits.stored"] = figure(calibrate::stored_bits(*artefact));
  info["bits.measured_on"] = std::to_string(held_out_.size()) + " tokens held out, sink " +
                             std::to_string(kDefaultSinkTokens) + ", recent " +
                             std::to_string(kSensitivityRecent);
  info["bits.predicted_kl"] = figure(calibrate::predicted_loss(*artefact)) + " there; k2v2 " +
                              figure(calibrate::predicted_loss(fewest));
}

CalibrationResult Calibration::fit(Method method, const calibrate::FitVariant& variant,
                                   double bit_budget) const {
  CalibrationResult result;
  result.tokens_used = tokens_used_;
  result.tokens_asked = tokens_asked_;
  result.warnings = large_mean_warnings(collector_.statistics(), method);
  if (options_.stage) options_.stage("fitting layers");
  calibrate::FitOptions fit_options;
  fit_options.method = method;
  fit_options.variant = variant;
  fit_options.trellis = options_.trellis;
  fit_options.with_losses = bit_budget > 0;
  fit_options.num_threads = workbench_->num_threads();
  fit_options.progress = [&](int done, int total) {
    if (options_.progress) options_.progress(done, total);
    return !workbench_->host().stopped();
  };
  result.artefact =
      calibrate::fit(collector_.statistics(), workbench_->file().fingerprint, fit_options);
  if (bit_budget > 0) spend_bits(bit_budget, &result.artefact);
  auto& info = result.artefact.info;
  for (const auto& [key, value] : info_) info[key] = value;
  info["tokens_used"] = std::to_string(tokens_used_);
  info["tokens_asked"] = std::to_string(tokens_asked_);
  for (std::size_t i = 0; i < result.warnings.size(); ++i) {
    info["warning." + std::to_string(i + 1)] = result.warnings[i];
  }
  return result;
}

CalibrationResult calibrate_model(Workbench* workbench, const std::vector<const TextFile*>& texts,
                                  const CalibrationOptions& options) {
  calibrate::check_fit_variant(options.variant, options.method);
  if (options.bit_budget > 0) {
    const ModelFingerprint& model = workbench->file().fingerprint;
    const calibrate::LayerShape shape = {model.num_q_heads, model.num_kv_heads, model.head_dim_k,
                                         model.head_dim_v};
    calibrate::check_budget(options.bit_budget,
                            calibrate::make_uncalibrated(options.method, model, {{0, shape}}));
  }
  return Calibration(workbench, texts, options, options.variant.raw_target)
      .fit(options.method, options.variant, options.bit_budget);
}

}  // namespace oscar::eval

// oscar calibrate
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "artefact_report.h"
#include "base/error.h"
#include "calibrate/methods.h"
#include "commands.h"
#include "eval/bit_sensitivity.h"
#include "eval/calibration_run.h"
#include "format/kv_spec.h"
#include "output_file.h"
#include "support.h"

namespace oscar::tool {
namespace {

struct CalibrateCommand {
  CommonOptions common;
  std::vector<std::string> texts;
  bool sample = false;
  std::int64_t tokens = eval::kDefaultCalibrationTokens;
  std::string method = method_name(Method::kOscarPlus);
  std::uint64_t seed = 1;
  std::optional<std::string> ablation;
  bool trellis = false;
  double bits = 0;
  std::string output;
};

Method calibrated_method(const std::string& name) {
  const Method method = method_from_name(name);
  if (calibrate::needs_statistics(method)) return method;
  throw Error(ErrorCode::kInvalidArgument, "--method " + name + " needs no calibration (use --kv " +
                                               name + "); those that do are " +
                                               calibrate::calibrated_method_names());
}

void run_calibrate(const CalibrateCommand& command) {
  const Method method = calibrated_method(command.method);
  const calibrate::FitVariant variant =
      command.ablation ? calibrate::parse_fit_variant(*command.ablation) : calibrate::FitVariant{};
  calibrate::check_fit_variant(variant, method);
  if (command.trellis) calibrate::check_trellis(method);
  if (command.trellis && command.bits > 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "--trellis: trellis codes have 2 bits in every layer; leave out --bits or "
                "--trellis");
  }
  if (command.bits > 0 && command.tokens < eval::kMinCalibrationTokens + eval::kSensitivityTokens) {
    throw Error(ErrorCode::kInvalidArgument,
                "--tokens " + std::to_string(command.tokens) + ": with --bits at least " +
                    std::to_string(eval::kMinCalibrationTokens + eval::kSensitivityTokens) + ", " +
                    std::to_string(eval::kSensitivityTokens) + " of them to measure layers on");
  }
  check_output(command.output, OutputKind::kArtefact);
  check_distinct(command.output, command.common.json);
  std::vector<std::string> paths = command.texts;
  if (command.sample) paths.push_back(sample_text_path());
  std::vector<std::unique_ptr<eval::TextFile>> files;
  std::vector<const eval::TextFile*> texts;
  for (const std::string& path : paths) {
    files.push_back(std::make_unique<eval::TextFile>(path));
    texts.push_back(files.back().get());
  }
  Session session = open_session(command.common);
  auto progress = std::make_unique<Progress>("calibrating, tokens");
  eval::CalibrationOptions options;
  options.method = method;
  options.variant = variant;
  options.trellis = command.trellis;
  options.bit_budget = command.bits;
  options.num_tokens = command.tokens;
  options.seed = command.seed;
  options.progress = [&](std::int64_t done, std::int64_t total) { progress->update(done, total); };
  options.stage = [&](const std::string& stage) {
    progress = nullptr;
    progress = std::make_unique<Progress>(stage);
  };
  const eval::CalibrationResult result =
      eval::calibrate_model(session.workbench.get(), texts, options);
  session.host->throw_if_stopped();
  save_artefact(result.artefact, command.output);
  progress->clear();
  print_layers(result.artefact);
  for (const std::string& warning : result.warnings) warn(warning);
  const std::string counts =
      std::to_string(result.tokens_used) + " of " + std::to_string(result.tokens_asked) + " tokens";
  if (result.tokens_used < result.tokens_asked)
    warn("the text is shorter than asked for: " + counts);
  std::printf("wrote %s: %s, %s\n", one_line(command.output, 400).c_str(), method_name(method),
              counts.c_str());
  if (!command.common.json.empty()) write_json(command.common.json, artefact_json(result.artefact));
}

}  // namespace

void add_calibrate(CLI::App* program) {
  auto command = std::make_shared<CalibrateCommand>();
  CLI::App* app = program->add_subcommand(
      "calibrate",
      "measure a model on a text and write the artefact that --kv takes\n"
      "  oscar calibrate -m model.gguf -f prose.txt code.txt -o model.oscar.safetensors\n"
      "  oscar calibrate -m model.gguf --sample -o model.oscar.safetensors");
  add_common_options(app, &command->common);
  CLI::Option* texts =
      app->add_option("-f,--file", command->texts,
                      "UTF-8 texts like those the model will see; they share the tokens evenly");
  CLI::Option* sample = app->add_flag("--sample", command->sample, "the built-in text");
  app->add_option("--tokens", command->tokens,
                  "tokens to use, at least " + std::to_string(eval::kMinCalibrationTokens))
      ->check(CLI::Range(eval::kMinCalibrationTokens, std::int64_t{1} << 24))
      ->capture_default_str();
  app->add_option("--method", command->method, "oscar-plus, or oscar (arXiv 2605.17757)")
      ->capture_default_str();
  add_seed_option(app, &command->seed, "of the rows that are sampled");
  app->add_option("--bits", command->bits,
                  "stored bits a value, as 2.5, spent over layers, keys and values by what each "
                  "loses on " +
                      std::to_string(eval::kSensitivityTokens) +
                      " tokens held out; takes two short passes a layer")
      ->check(CLI::Range(kMinBitBudget, kMaxBitBudget))
      ->check(finite);
  app->add_flag("--trellis", command->trellis,
                "trellis codes: less error in the same bits, more work when a token is stored");
  app->add_option("--ablation", command->ablation,
                  "leave parts out, comma-separated: no-u (H·P in place of U·H·P), no-p (no bit "
                  "reversal), target=raw (U of KᵀK and VᵀV), per-layer (one U for all KV heads)");
  app->add_option("-o,--output", command->output, "the artefact, a safetensors file")->required();
  app->callback([command, texts, sample] {
    if (texts->count() + sample->count() == 0) {
      throw CLI::RequiredError("one of --file and --sample");
    }
    run_calibrate(*command);
  });
}

}  // namespace oscar::tool

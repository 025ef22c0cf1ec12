// oscar eval sweep
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/hash.h"
#include "calibrate/methods.h"
#include "commands.h"
#include "eval/calibration_run.h"
#include "eval/sweep.h"
#include "eval/text.h"
#include "eval_command.h"
#include "eval_commands.h"
#include "kv_options.h"

namespace oscar::tool {
namespace {

struct SweepCommand {
  EvalCommand eval;
  std::string kind;
  std::string base = "oscar-plus";
  std::vector<std::string> texts;
  std::vector<std::int64_t> tokens = {512, 1024, 2048, 4096, 8192};
};

constexpr const char* kCalibration = "calibration";
constexpr const char* kAblation = "ablation";
// What can be left out in calibration alone, or is fitted anew there.
constexpr const char* kCalibratedParts[] = {"no-u", "target=raw", "per-layer"};

// Those of the list that suit the model and the method; the others are named on stderr.
std::vector<eval::KvChoice> choose_fitting(const std::vector<std::string>& specs,
                                           eval::Workbench* workbench) {
  std::vector<eval::KvChoice> fitting;
  for (const std::string& spec : specs) {
    try {
      fitting.push_back(choose_kvs({spec}, workbench).front());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument && error.code() != ErrorCode::kUnsupported) {
        throw;
      }
      note(std::string("left out: ") + error.what());
    }
  }
  if (fitting.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "nothing of the sweep suits this method and model");
  }
  return fitting;
}

// The method of --kv fitted without a part, from one pass over the built-in text; none for an
// artefact's file or a method whose transforms are not fitted. Kept beside the methods' artefacts.
std::vector<eval::KvChoice> choose_calibrated_parts(const std::string& base,
                                                    eval::Workbench* workbench) {
  const eval::KvChoice probe = eval::choose_kv(base);
  const Method method = probe.spec.method;
  if (probe.spec.kind != KvSpec::Kind::kMethod || !calibrate::has_fit_variants(method)) {
    note("left out: " + base + " without parts that only calibration can leave out (" +
         kCalibratedParts[1] + ", " + kCalibratedParts[2] + "); give --kv oscar or oscar-plus");
    return {};
  }
  // Made when the first artefact is missing.
  std::unique_ptr<Progress> progress;
  std::unique_ptr<eval::Calibration> calibration;
  std::vector<eval::KvChoice> choices;
  for (const char* part : kCalibratedParts) {
    const std::filesystem::path path = std::filesystem::path(artefact_folder()) /
                                       (workbench->file().fingerprint.weights_hash + "-" +
                                        method_name(method) + "-" + part + ".safetensors");
    if (!std::filesystem::exists(path)) {
      if (!calibration) {
        const eval::TextFile sample(sample_text_path());
        progress = std::make_unique<Progress>("calibrating the ablation on the built-in sample");
        eval::CalibrationOptions options;
        options.progress = [&](std::int64_t done, std::int64_t total) {
          progress->update(done, total);
        };
        calibration = std::make_unique<eval::Calibration>(
            workbench, std::vector<const eval::TextFile*>{&sample}, options, /*raw_targets=*/true);
      }
      save_artefact(calibration->fit(method, calibrate::parse_fit_variant(part)).artefact,
                    path.string());
    }
    eval::KvChoice choice = probe;
    eval::use_artefact(&choice, path.string());
    workbench->check(choice);
    choice.label = base + " (calibrated with " + part + ")";
    choices.push_back(std::move(choice));
  }
  return choices;
}

// An artefact of `text`'s first tokens, kept beside those of the methods.
std::string calibrated_on(const eval::TextFile& text, std::int64_t num_tokens, Method method,
                          eval::Workbench* workbench) {
  const std::string text_hash = hash_hex(text.bytes().data(), text.bytes().size()).substr(0, 8);
  const std::string path =
      (std::filesystem::path(artefact_folder()) /
       (workbench->file().fingerprint.weights_hash + "-" + method_name(method) + "-" + text_hash +
        "-" + std::to_string(num_tokens) + ".safetensors"))
          .string();
  if (std::filesystem::exists(path)) return path;
  Progress progress("calibrating on " + std::to_string(num_tokens) + " tokens");
  eval::CalibrationOptions options;
  options.method = method;
  options.num_tokens = num_tokens;
  options.progress = [&](std::int64_t done, std::int64_t total) { progress.update(done, total); };
  const eval::CalibrationResult result = eval::calibrate_model(workbench, {&text}, options);
  workbench->host().throw_if_stopped();
  if (result.tokens_used < num_tokens) {
    throw Error(ErrorCode::kInvalidArgument, text.path() + ": has " +
                                                 std::to_string(result.tokens_used) + " tokens; " +
                                                 std::to_string(num_tokens) + " are asked for");
  }
  save_artefact(result.artefact, path);
  return path;
}

// The method of --kv on every text and length. A length that a text does not have is left out.
std::vector<eval::KvChoice> choose_calibrations(const SweepCommand& command,
                                                eval::Workbench* workbench) {
  const KvSpec base = parse_kv_spec(command.base);
  eval::KvChoice probe = eval::choose_kv(command.base);
  if (base.kind != KvSpec::Kind::kMethod || !eval::needs_calibration(probe)) {
    throw Error(ErrorCode::kInvalidArgument,
                "--kv " + command.base +
                    ": a sweep of the calibration needs a method that is "
                    "calibrated: " +
                    calibrate::calibrated_method_names());
  }
  workbench->check(probe);
  std::vector<std::string> paths = command.texts;
  if (paths.empty()) paths.push_back(sample_text_path());
  std::vector<eval::KvChoice> choices;
  for (const std::string& path : paths) {
    const eval::TextFile text(path);
    const std::string name = std::filesystem::path(path).filename().string();
    for (const std::int64_t num_tokens : command.tokens) {
      eval::KvChoice choice = probe;
      try {
        eval::use_artefact(&choice, calibrated_on(text, num_tokens, base.method, workbench));
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kInvalidArgument) throw;
        note(std::string("left out: ") + error.what());
        continue;
      }
      choice.label = command.base + " (" + name + ", " + std::to_string(num_tokens) + " tokens)";
      choices.push_back(choice);
    }
  }
  if (choices.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "no text is long enough for any of --tokens");
  }
  return choices;
}

void run_sweep(const SweepCommand& command) {
  // Unknown names are refused before the model is read.
  std::vector<std::string> specs;
  if (command.kind != kCalibration) specs = eval::sweep_specs(command.kind, command.base);
  run_evaluation(command.eval, /*with_kl=*/true, [&](eval::Workbench* workbench) {
    EvalPlan plan;
    plan.kvs = command.kind == kCalibration ? choose_calibrations(command, workbench)
                                            : choose_fitting(specs, workbench);
    if (command.kind == kAblation) {
      for (eval::KvChoice& choice : choose_calibrated_parts(command.base, workbench)) {
        plan.kvs.push_back(std::move(choice));
      }
    }
    plan.extra["sweep"] = command.kind;
    plan.extra["base"] = command.base;
    return plan;
  });
}

}  // namespace

void add_eval_sweep(CLI::App* eval) {
  auto command = std::make_shared<SweepCommand>();
  CLI::App* app = eval->add_subcommand(
      "sweep",
      "KL divergence as in `eval kl` over a list of variants of one --kv, all beside one f16 pass\n"
      "  oscar eval sweep windows -m model.gguf -f other.txt --kv oscar-plus --json r.json\n"
      "  oscar eval sweep calibration -m model.gguf -f other.txt --calibration code.txt prose.txt");
  std::string kinds;
  for (const eval::SweepKind& kind : eval::sweep_kinds()) {
    kinds += std::string(kind.name) + " (" + kind.description + "), ";
  }
  app->add_option("what", command->kind,
                  kinds + kCalibration + " (tokens and text that the method is calibrated on)")
      ->required();
  add_eval_options(app, &command->eval);
  app->add_option("--kv", command->base, "what is varied: a method or an artefact, with options")
      ->capture_default_str();
  app->add_option("--calibration", command->texts,
                  "texts of the sweep calibration (default: the built-in one)");
  app->add_option("--tokens", command->tokens, "lengths of the sweep calibration")
      ->delimiter(',')
      ->check(CLI::Range(eval::kMinCalibrationTokens, std::int64_t{1} << 24))
      ->capture_default_str();
  app->callback([command] { run_sweep(*command); });
}

}  // namespace oscar::tool

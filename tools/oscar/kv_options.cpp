#include "kv_options.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <utility>

#include "base/error.h"
#include "eval/calibration_run.h"
#include "eval/text.h"

namespace oscar::tool {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_usable(const std::string& path, const eval::Workbench& workbench) {
  if (!std::filesystem::exists(path)) return false;
  try {
    check_fingerprint(load_artefact(path), workbench.file().fingerprint);
    return true;
  } catch (const Error& error) {
    note(std::string(error.what()) + "; calibrating again");
    return false;
  }
}

std::string kept_path(Method method, const eval::Workbench& workbench) {
  return (std::filesystem::path(artefact_folder()) /
          (workbench.file().fingerprint.weights_hash + "-" + method_name(method) + ".safetensors"))
      .string();
}

// Makes sure of an artefact for each of the methods; one pass of the model serves all that are
// missing.
void keep_artefacts(const std::set<Method>& methods, eval::Workbench* workbench) {
  std::vector<Method> missing;
  for (const Method method : methods) {
    const std::string path = kept_path(method, *workbench);
    if (is_usable(path, *workbench)) {
      note(std::string(method_name(method)) + " uses " + path);
    } else {
      missing.push_back(method);
    }
  }
  if (missing.empty()) return;
  const eval::TextFile sample(sample_text_path());
  Progress progress("calibrating on the built-in sample");
  eval::CalibrationOptions options;
  options.progress = [&](std::int64_t done, std::int64_t total) { progress.update(done, total); };
  const eval::Calibration calibration(workbench, {&sample}, options, /*raw_targets=*/false);
  for (const Method method : missing) {
    const eval::CalibrationResult result = calibration.fit(method, {});
    save_artefact(result.artefact, kept_path(method, *workbench));
    progress.clear();
    note(std::string(method_name(method)) + ": calibrated on " +
         std::to_string(result.tokens_used) + " tokens of the built-in sample, kept in " +
         kept_path(method, *workbench));
    for (const std::string& warning : result.warnings) warn(warning);
  }
}

// Every method as it is by default, and what is compared with them at other bits and groups.
std::vector<std::string> all_specs() {
  std::vector<std::string> specs = {"q4_0"};
  for (const Method method : all_methods()) specs.push_back(method_name(method));
  for (const char* spec : {"quarot:k4v4", "turboquant:k3v3", "kivi:group=128",
                           "omniscale:group=128", "oscar-plus:k3v2"})
    specs.push_back(spec);
  return specs;
}

}  // namespace

std::string cache_folder() {
  const std::string own = environment("OSCAR_CACHE_DIR");
  if (!own.empty()) return own;
  const std::string shared = environment("XDG_CACHE_HOME");
  if (!shared.empty()) return shared + "/oscar-kv";
  const std::string home = environment("HOME");
  if (!home.empty()) return home + "/.cache/oscar-kv";
  throw Error(ErrorCode::kNotFound,
              "no folder to keep an artefact in; set OSCAR_CACHE_DIR, or calibrate with "
              "`oscar calibrate` and give the file to --kv");
}

std::string artefact_folder() {
  const std::filesystem::path folder = std::filesystem::path(cache_folder()) / "artefacts";
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) {
    throw Error(ErrorCode::kIo, folder.string() + ": cannot create: " + failure.message());
  }
  return folder.string();
}

void for_each_of_all(const std::function<void(const std::string& spec)>& add) {
  bool any = false;
  for (const std::string& spec : all_specs()) {
    try {
      add(spec);
      any = true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported && error.code() != ErrorCode::kInvalidArgument) {
        throw;
      }
      note("left out: " + spec + ": " + error.what());
    }
  }
  if (any) return;
  throw Error(ErrorCode::kUnsupported, std::string("--kv ") + kAllKvs +
                                           ": the model can have none of the methods, as said "
                                           "above; use --kv f16");
}

void add_kv_option(CLI::App* app, std::vector<std::string>* specs, bool takes_all) {
  app->add_option(
         "--kv", *specs,
         "KV cache: f16, q8_0, q4_0 (llama.cpp's own), " + method_names() +
             ", or "
             "an artefact FILE; then ':' and options: k2v2 k3v2 … (bits 2, 3, 4, 16), bits=2.5 "
             "(spent by layer, of a FILE calibrated with --bits), sink=N "
             "recent=N (exact tokens; 64, 256), group=N, no-u, no-p, no-hadamard, no-clip, "
             "no-mean, unbiased, trellis, float. Repeat it to compare" +
             (takes_all ? "; \"all\": every method that the model can have" : ""))
      ->allow_extra_args(false);
}

std::vector<eval::KvChoice> choose_kvs(const std::vector<std::string>& specs,
                                       eval::Workbench* workbench) {
  std::vector<eval::KvChoice> choices;
  for (const std::string& spec : specs) {
    if (spec == kAllKvs) {
      for_each_of_all([&](const std::string& one) {
        eval::KvChoice choice = eval::choose_kv(one);
        workbench->check(choice);
        choices.push_back(std::move(choice));
      });
      continue;
    }
    choices.push_back(eval::choose_kv(spec));
    workbench->check(choices.back());
  }
  std::set<Method> calibrated;
  for (const eval::KvChoice& choice : choices) {
    if (eval::needs_calibration(choice)) calibrated.insert(choice.spec.method);
  }
  keep_artefacts(calibrated, workbench);
  for (eval::KvChoice& choice : choices) {
    if (!eval::needs_calibration(choice)) continue;
    eval::use_artefact(&choice, kept_path(choice.spec.method, *workbench));
    workbench->check(choice);
  }
  return choices;
}

}  // namespace oscar::tool

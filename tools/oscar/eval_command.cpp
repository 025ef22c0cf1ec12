#include "eval_command.h"

#include <CLI/CLI.hpp>
#include <filesystem>

#include "base/error.h"
#include "command_line.h"
#include "eval/text.h"
#include "eval_report.h"

namespace oscar::tool {
namespace {

std::vector<llama_token> text_tokens(const EvalCommand& command, const eval::TextFile& text,
                                     eval::Workbench* workbench) {
  const std::int64_t needed = command.ctx * command.windows;
  std::vector<llama_token> tokens =
      eval::tokenize(workbench->vocab(), text.bytes(), needed, /*parse_special=*/false);
  if (static_cast<std::int64_t>(tokens.size()) < needed) {
    throw Error(ErrorCode::kInvalidArgument,
                command.text + ": has " + std::to_string(tokens.size()) + " tokens; " +
                    std::to_string(needed) + " are needed (--ctx " + std::to_string(command.ctx) +
                    ", --windows " + std::to_string(command.windows) + ")");
  }
  return tokens;
}

std::string state_path(const EvalCommand& command) {
  return command.common.json.empty() ? "" : command.common.json + ".state";
}

}  // namespace

void add_eval_options(CLI::App* app, EvalCommand* command) {
  add_common_options(app, &command->common);
  app->add_option("-f,--file", command->text, "UTF-8 text, not the one used for calibration")
      ->required();
  app->add_option("-c,--ctx", command->ctx, "tokens of context, at most the model's")
      ->check(CLI::Range(eval::kMinEvalContext, std::int64_t{1} << 24))
      ->capture_default_str();
  app->add_option("--windows", command->windows, "stretches of --ctx tokens that are evaluated")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  add_seed_option(app, &command->seed, "of the confidence intervals' resampling");
  app->add_flag("--fresh", command->fresh,
                "begin anew where an interrupted run left windows behind (JSON_FILE.state)");
}

Json result_header(const CommonOptions& options, const eval::Workbench& workbench) {
  Json document = json_header(options, workbench);
  document["command"] = command_line();
  return document;
}

void run_evaluation(const EvalCommand& command, bool with_kl,
                    const std::function<EvalPlan(eval::Workbench*)>& plan) {
  const eval::TextFile text(command.text);
  Session session = open_session(command.common);
  eval::Workbench& workbench = *session.workbench;
  workbench.check_context(command.ctx);
  const EvalPlan chosen = plan(&workbench);
  const std::vector<llama_token> tokens = text_tokens(command, text, &workbench);
  Progress progress("evaluating, tokens");
  eval::EvalOptions options;
  options.context_tokens = command.ctx;
  options.num_windows = command.windows;
  options.with_kl = with_kl;
  options.by_position = with_kl;
  options.seed = command.seed;
  options.state_path = state_path(command);
  options.program_version = OSCAR_VERSION;
  options.resumed = [&](std::int64_t done, std::int64_t total) {
    note("goes on with an interrupted run: " + std::to_string(done) + " of " +
         std::to_string(total) + " windows come from " + options.state_path);
  };
  options.progress = [&](std::int64_t done, std::int64_t total) { progress.update(done, total); };
  if (command.fresh) eval::EvalState::remove(options.state_path);
  const std::vector<eval::EvalRow> rows = eval::evaluate(&workbench, tokens, chosen.kvs, options);
  progress.clear();
  print_eval_rows(rows);
  print_position_rows(rows);
  print_intervals(rows, command.seed);
  if (command.common.json.empty()) return;
  Json document = result_header(command.common, workbench);
  document["measure"] = with_kl ? "kl" : "ppl";
  document["text"] = std::filesystem::path(command.text).filename().string();
  document["windows"] = command.windows;
  document["seed"] = command.seed;
  document["bootstrap"] = {{"resamples", eval::BootstrapOptions{}.num_resamples},
                           {"block_tokens", eval::kTokenBlock},
                           {"level", eval::BootstrapOptions{}.level}};
  document.update(chosen.extra);
  document["results"] = Json::array();
  for (const eval::EvalRow& row : rows) document["results"].push_back(eval_row_json(row));
  write_json(command.common.json, document);
  eval::EvalState::remove(options.state_path);
}

}  // namespace oscar::tool

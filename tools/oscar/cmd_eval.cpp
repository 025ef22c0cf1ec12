// oscar eval ppl, oscar eval kl
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "commands.h"
#include "eval/evaluate.h"
#include "eval/text.h"
#include "eval_report.h"
#include "kv_options.h"
#include "support.h"

namespace oscar::tool {
namespace {

struct EvalCommand {
  CommonOptions common;
  std::string text;
  std::int64_t ctx = 4096;
  std::int64_t windows = 1;
  std::vector<std::string> kvs;
};

void run_eval(const EvalCommand& command, bool with_kl) {
  const eval::TextFile text(command.text);
  Session session = open_session(command.common);
  eval::Workbench& workbench = *session.workbench;
  workbench.check_context(command.ctx);
  const std::vector<eval::KvChoice> kvs = choose_kvs(command.kvs, &workbench);
  const std::int64_t needed = command.ctx * command.windows;
  const std::vector<llama_token> tokens =
      eval::tokenize(workbench.vocab(), text.bytes(), needed, /*parse_special=*/false);
  if (static_cast<std::int64_t>(tokens.size()) < needed) {
    throw Error(ErrorCode::kInvalidArgument,
                command.text + ": has " + std::to_string(tokens.size()) + " tokens; " +
                    std::to_string(needed) + " are needed (--ctx " + std::to_string(command.ctx) +
                    ", --windows " + std::to_string(command.windows) + ")");
  }
  Progress progress("evaluating, tokens");
  eval::EvalOptions options;
  options.context_tokens = command.ctx;
  options.num_windows = command.windows;
  options.with_kl = with_kl;
  options.progress = [&](std::int64_t done, std::int64_t total) { progress.update(done, total); };
  const std::vector<eval::EvalRow> rows = eval::evaluate(&workbench, tokens, kvs, options);
  progress.clear();
  print_eval_rows(rows);
  if (!command.common.json.empty()) {
    Json document = json_header(command.common, workbench);
    document["text"] = std::filesystem::path(command.text).filename().string();
    document["results"] = Json::array();
    for (const eval::EvalRow& row : rows) document["results"].push_back(eval_row_json(row));
    write_json(command.common.json, document);
  }
}

void add_one(CLI::App* parent, const std::string& name, const std::string& description,
             bool with_kl) {
  auto command = std::make_shared<EvalCommand>();
  CLI::App* app = parent->add_subcommand(name, description);
  add_common_options(app, &command->common);
  app->add_option("-f,--file", command->text, "UTF-8 text, not the one used for calibration")
      ->required();
  app->add_option("-c,--ctx", command->ctx, "tokens of context, at most the model's")
      ->check(CLI::Range(eval::kMinEvalContext, std::int64_t{1} << 24))
      ->capture_default_str();
  app->add_option("--windows", command->windows, "stretches of --ctx tokens that are evaluated")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  add_kv_option(app, &command->kvs);
  if (!with_kl) app->get_option("--kv")->required();
  app->callback([command, with_kl] { run_eval(*command, with_kl); });
}

}  // namespace

void add_eval(CLI::App* program) {
  CLI::App* app = program->add_subcommand("eval", "measure what a KV cache costs in quality");
  app->require_subcommand(1);
  add_one(app, "ppl",
          "perplexity of a text under each KV cache, teacher-forced, over the last half of the "
          "context\n"
          "  oscar eval ppl -m model.gguf -f other.txt --ctx 4096 --kv f16 --kv quarot",
          false);
  add_one(
      app, "kl",
      "KL divergence (nats a token) of each KV cache's predictions from those with llama.cpp's "
      "f16 cache, teacher-forced, over the last half of the context: mean, median, mean without "
      "the lowest and the highest tenth, 99th percentile, share of equal top tokens, perplexity. "
      "Row f16:fa-off is the floor: f16 with flash attention off, against on\n"
      "  oscar eval kl -m model.gguf -f other.txt --ctx 4096 --kv quarot:k3v2 --json r.json",
      true);
}

}  // namespace oscar::tool

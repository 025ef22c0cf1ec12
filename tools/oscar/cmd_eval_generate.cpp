// oscar eval generate
#include <CLI/CLI.hpp>
#include <filesystem>
#include <limits>
#include <memory>

#include "eval/generation_run.h"
#include "eval/text.h"
#include "eval_command.h"
#include "eval_commands.h"
#include "eval_report.h"
#include "kv_options.h"

namespace oscar::tool {
namespace {

struct GenerateCommand {
  CommonOptions common;
  std::string text;
  std::vector<std::string> kvs;
  eval::GenerationOptions options;
};

void print_rows(const std::vector<eval::GenerationRow>& rows) {
  std::vector<std::vector<std::string>> table = {{"KV cache", "bits", "same from the start (95 %)",
                                                  "same words", "same 4-grams", "repeated 4-grams",
                                                  "loops", "foreign"}};
  const auto percent = [](double share) { return format("%.1f %%", 100 * share); };
  for (const eval::GenerationRow& row : rows) {
    table.push_back({row.kv, format("%.3f", row.use.bits),
                     percent(row.common_share) + " (" + percent(row.common_interval.low) + " … " +
                         percent(row.common_interval.high) + ")",
                     percent(row.overlap1), percent(row.overlap4), percent(row.repeated),
                     std::to_string(row.num_loops) + " of " + std::to_string(row.texts.size()),
                     percent(row.foreign)});
  }
  print_table(table);
  std::printf(
      "greedy, %zu texts, means; the same: as with f16; loops: texts that end in one passage over "
      "and over; foreign: characters of scripts that neither prompt nor f16's text has\n",
      rows.front().texts.size());
}

Json row_json(const eval::GenerationRow& row) {
  Json json;
  json["kv"] = row.kv;
  json["method"] = row.use.method;
  json["bits"] = row.use.bits;
  json["kv_bytes"] = row.use.kv_bytes;
  json["common_prefix"] = row.common_share;
  json["common_prefix_ci95"] = interval_json(row.common_interval);
  json["overlap"] = {{"1", row.overlap1}, {"4", row.overlap4}};
  json["repeated4"] = row.repeated;
  json["foreign"] = row.foreign;
  json["loops"] = row.num_loops;
  json["same"] = row.num_same;
  for (const eval::GeneratedText& text : row.texts) {
    json["texts"].push_back({{"first_divergence", text.common_tokens},
                             {"tokens", text.tokens.size()},
                             {"ended", text.ended},
                             {"overlap", {{"1", text.overlap1}, {"4", text.overlap4}}},
                             {"repeated4", text.repeated},
                             {"loop_tokens", text.loop},
                             {"foreign", text.foreign},
                             {"text", text.text}});
  }
  return json;
}

void run_generate(const GenerateCommand& command) {
  const eval::TextFile text(command.text);
  Session session = open_session(command.common);
  eval::Workbench& workbench = *session.workbench;
  workbench.check_context(command.options.prompt_tokens + command.options.new_tokens);
  const std::vector<eval::KvChoice> kvs = choose_kvs(command.kvs, &workbench);
  const std::vector<llama_token> tokens = eval::tokenize(
      workbench.vocab(), text.bytes(), std::numeric_limits<std::int32_t>::max(), false);
  Progress progress("generating, tokens");
  eval::GenerationOptions options = command.options;
  options.progress = [&](std::int64_t done, std::int64_t total) { progress.update(done, total); };
  const std::vector<eval::GenerationRow> rows =
      eval::run_generations(&workbench, tokens, kvs, options);
  progress.clear();
  print_rows(rows);
  if (command.common.json.empty()) return;
  Json document = result_header(command.common, workbench);
  document["measure"] = "generate";
  document["text"] = std::filesystem::path(command.text).filename().string();
  document["prompt_tokens"] = options.prompt_tokens;
  document["new_tokens"] = options.new_tokens;
  document["seed"] = options.seed;
  document["results"] = Json::array();
  for (const eval::GenerationRow& row : rows) document["results"].push_back(row_json(row));
  write_json(command.common.json, document);
}

}  // namespace

void add_eval_generate(CLI::App* eval) {
  auto command = std::make_shared<GenerateCommand>();
  CLI::App* app = eval->add_subcommand(
      "generate",
      "long greedy generations beside those with f16: where they part, what they still share, and "
      "whether they loop or slip into other scripts\n"
      "  oscar eval generate -m model.gguf -f other.txt -n 256 --kv quarot --kv oscar-plus");
  add_common_options(app, &command->common);
  app->add_option("-f,--file", command->text, "UTF-8 text that the prompts are cut from")
      ->required();
  app->add_option("--prompts", command->options.num_prompts, "prompts, evenly spaced in the text")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app->add_option("--prompt-tokens", command->options.prompt_tokens, "tokens of each prompt")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app->add_option("-n,--tokens", command->options.new_tokens, "new tokens of each, at most")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  add_seed_option(app, &command->options.seed, "of the confidence intervals");
  add_kv_option(app, &command->kvs);
  app->get_option("--kv")->required();
  app->callback([command] { run_generate(*command); });
}

}  // namespace oscar::tool

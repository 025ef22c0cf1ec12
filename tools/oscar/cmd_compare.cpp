// oscar compare
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "answer.h"
#include "base/error.h"
#include "commands.h"
#include "eval/evaluate.h"
#include "eval/text.h"
#include "eval_report.h"
#include "kv_options.h"

namespace oscar::tool {
namespace {

// Of an answer, in the table; the JSON has all of it.
constexpr std::size_t kAnswerBytes = 48;

struct CompareCommand {
  CommonOptions common;
  std::string text, question, expect;
  std::int64_t new_tokens = 32;
  std::int64_t ctx = 4096;
  std::vector<std::string> kvs = {"f16", "quarot", "oscar-plus"};
};

struct Row {
  Answer answer;
  const eval::EvalRow* eval = nullptr;
  bool right = false;
};

const eval::EvalRow* find_row(const std::vector<eval::EvalRow>& rows, const std::string& kv) {
  const auto found = std::find_if(rows.begin(), rows.end(),
                                  [&](const eval::EvalRow& row) { return row.kv == kv; });
  return found == rows.end() ? nullptr : &*found;
}

void print_rows(const std::vector<Row>& rows, const eval::EvalRow* floor) {
  std::vector<std::vector<std::string>> table = {{"KV cache", "answer", "", "bits", "KV memory",
                                                  "prefill tok/s", "decode tok/s", "ppl",
                                                  "KL mean"}};
  for (const Row& row : rows) {
    const eval::Generation& generation = row.answer.generation;
    table.push_back({row.answer.kv.label, one_line(generation.text, kAnswerBytes),
                     row.right ? "right" : "wrong", format("%.2f", row.answer.use.bits),
                     human_bytes(row.answer.use.kv_bytes),
                     format("%.0f", generation.prefill_tokens_per_second()),
                     format("%.1f", generation.decode_tokens_per_second()),
                     format("%.3f", row.eval->perplexity), format("%.4f", row.eval->kl->mean)});
  }
  print_table(table);
  std::printf(
      "KL in nats a token against f16, perplexity: over the last half of %lld tokens; floor "
      "(f16, flash attention off against on): KL %.4f, ppl %.3f\n",
      static_cast<long long>(floor->context_tokens), floor->kl->mean, floor->perplexity);
}

void run_compare(const CompareCommand& command) {
  eval::check_utf8("--question", command.question);
  const eval::TextFile text(command.text);
  Session session = open_session(command.common);
  eval::Workbench& workbench = *session.workbench;
  const std::vector<eval::KvChoice> kvs = choose_kvs(command.kvs, &workbench);
  const eval::Model& model = workbench.model(eval::Placement::kTokenizer);
  const std::vector<llama_token> prompt =
      prompt_tokens(model, std::string(text.bytes()) + "\n\n" + command.question, Chat::kAuto);
  const auto needed = static_cast<std::int64_t>(prompt.size()) + command.new_tokens;
  workbench.check_context(needed);
  const std::int64_t trained = workbench.file().context_length;
  const std::vector<llama_token> tokens = eval::tokenize(
      model.vocab(), text.bytes(), trained > 0 ? std::min(command.ctx, trained) : command.ctx,
      /*parse_special=*/false);
  eval::EvalOptions options;
  options.context_tokens = static_cast<std::int64_t>(tokens.size());
  if (options.context_tokens < eval::kMinEvalContext) {
    throw Error(ErrorCode::kInvalidArgument,
                command.text + ": has " + std::to_string(tokens.size()) + " tokens; at least " +
                    std::to_string(eval::kMinEvalContext) + " are needed");
  }

  std::vector<Row> rows;
  for (const eval::KvChoice& kv : kvs) {
    Row row;
    row.answer = ask(&workbench, kv, prompt, needed, command.new_tokens, {}, nullptr);
    row.right = row.answer.generation.text.find(command.expect) != std::string::npos;
    rows.push_back(std::move(row));
  }
  Progress progress("evaluating, tokens");
  options.progress = [&](std::int64_t done, std::int64_t total) { progress.update(done, total); };
  const std::vector<eval::EvalRow> evals = eval::evaluate(&workbench, tokens, kvs, options);
  progress.clear();
  for (Row& row : rows) row.eval = find_row(evals, row.answer.kv.label);
  const eval::EvalRow* floor = find_row(evals, eval::kFloorLabel);
  print_rows(rows, floor);

  if (command.common.json.empty()) return;
  Json document = json_header(command.common, workbench);
  document["text"] = std::filesystem::path(command.text).filename().string();
  document["question"] = command.question;
  document["expect"] = command.expect;
  document["results"] = Json::array();
  for (const Row& row : rows) {
    Json result = eval_row_json(*row.eval);
    result["answer"] = answer_json(row.answer);
    result["answer"]["right"] = row.right;
    document["results"].push_back(result);
  }
  document["floor"] = eval_row_json(*floor);
  write_json(command.common.json, document);
}

}  // namespace

void add_compare(CLI::App* program) {
  auto command = std::make_shared<CompareCommand>();
  CLI::App* app = program->add_subcommand(
      "compare",
      "one question about a long text under several KV caches: answers, memory, speed, perplexity "
      "and KL divergence in one table\n"
      "  oscar compare -m model.gguf -f long.txt --question 'Who did it?' --expect butler --kv f16 "
      "--kv model.oscar.safetensors");
  add_common_options(app, &command->common);
  app->add_option("-f,--file", command->text, "UTF-8 text that the question is about")->required();
  app->add_option("--question", command->question, "put after the text")->required();
  app->add_option("--expect", command->expect, "an answer that contains this is right")->required();
  app->add_option("-n,--tokens", command->new_tokens, "new tokens at most")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app->add_option("-c,--ctx", command->ctx,
                  "tokens of the text that perplexity and KL are taken over, at most")
      ->check(CLI::Range(eval::kMinEvalContext, std::int64_t{1} << 24))
      ->capture_default_str();
  add_kv_option(app, &command->kvs);
  app->callback([command] { run_compare(*command); });
}

}  // namespace oscar::tool

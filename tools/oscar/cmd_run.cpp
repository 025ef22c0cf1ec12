// oscar run
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "answer.h"
#include "base/error.h"
#include "commands.h"
#include "eval/text.h"
#include "kv_options.h"

namespace oscar::tool {
namespace {

struct RunCommand {
  CommonOptions common;
  std::string prompt, file;
  std::int64_t new_tokens = 64;
  std::int64_t ctx = 0;
  eval::SamplingOptions sampling;
  bool chat = true;
  std::vector<std::string> kvs = {"f16"};
};

void print_answers(const std::vector<Answer>& answers) {
  for (const Answer& answer : answers) {
    std::printf("--- %s\n%s\n", answer.kv.label.c_str(), answer.generation.text.c_str());
  }
  std::vector<std::vector<std::string>> table = {
      {"KV cache", "bits", "KV memory", "prefill tok/s", "decode tok/s"}};
  for (const Answer& answer : answers) {
    table.push_back({answer.kv.label, format("%.3f", answer.use.bits),
                     human_bytes(answer.use.kv_bytes),
                     format("%.1f", answer.generation.prefill_tokens_per_second()),
                     format("%.1f", answer.generation.decode_tokens_per_second())});
  }
  std::printf("\n");
  print_table(table);
}

std::string prompt_text(const RunCommand& command) {
  if (command.file.empty()) {
    eval::check_utf8("--prompt", command.prompt);
    return command.prompt;
  }
  return std::string(eval::TextFile(command.file).bytes());
}

void run_run(const RunCommand& command, Chat chat) {
  const std::string text = prompt_text(command);
  Session session = open_session(command.common);
  eval::Workbench& workbench = *session.workbench;
  if (command.ctx > 0) workbench.check_context(command.ctx);
  const std::vector<eval::KvChoice> kvs = choose_kvs(command.kvs, &workbench);
  const std::vector<llama_token> prompt =
      prompt_tokens(workbench.model(eval::Placement::kTokenizer), text, chat);
  const auto needed = static_cast<std::int64_t>(prompt.size()) + command.new_tokens;
  const std::int64_t ctx = command.ctx > 0 ? command.ctx : needed;
  if (prompt.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                text.empty()
                    ? "the prompt has no tokens"
                    : command.common.model + ": its vocabulary makes no token of the prompt");
  }
  if (ctx < needed) {
    throw Error(ErrorCode::kInvalidArgument, "--ctx " + std::to_string(ctx) +
                                                 " has no room for the prompt's " +
                                                 std::to_string(prompt.size()) + " tokens and " +
                                                 std::to_string(command.new_tokens) + " new ones");
  }
  workbench.check_context(ctx);
  const bool stream = kvs.size() == 1;
  std::vector<Answer> answers;
  for (const eval::KvChoice& kv : kvs) {
    answers.push_back(ask(&workbench, kv, prompt, ctx, command.new_tokens, command.sampling,
                          [&](std::string_view piece) {
                            if (!stream) return;
                            std::fwrite(piece.data(), 1, piece.size(), stdout);
                            std::fflush(stdout);
                          }));
  }
  if (stream) {
    std::printf("\n");
  } else {
    print_answers(answers);
  }
  if (!command.common.json.empty()) {
    Json document = json_header(command.common, workbench);
    document["results"] = Json::array();
    for (const Answer& answer : answers) document["results"].push_back(answer_json(answer));
    write_json(command.common.json, document);
  }
}

}  // namespace

void add_run(CLI::App* program) {
  auto command = std::make_shared<RunCommand>();
  CLI::App* app = program->add_subcommand(
      "run",
      "answer a prompt; with several --kv, with each of them, and then a table of memory and "
      "speed\n"
      "  oscar run -m model.gguf -p 'Why is the sky blue?' --kv model.oscar.safetensors\n"
      "  oscar run -m model.gguf -f prompt.txt -n 128 --kv f16 --kv quarot:k3v2");
  add_common_options(app, &command->common);
  CLI::Option* prompt = app->add_option("-p,--prompt", command->prompt, "the prompt");
  CLI::Option* file = app->add_option("-f,--file", command->file, "the prompt, a UTF-8 file");
  file->excludes(prompt);
  app->add_option("-n,--tokens", command->new_tokens, "new tokens at most")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app->add_option("-c,--ctx", command->ctx,
                  "tokens of context, at most the model's (default: prompt and new tokens)")
      ->check(CLI::Range(1, 1 << 24));
  app->add_option("--temp", command->sampling.temperature, "temperature; 0: the likeliest token")
      ->check(CLI::Range(0.0, 10.0))
      ->check(finite)
      ->capture_default_str();
  app->add_option("--top-k", command->sampling.top_k, "sample from the k likeliest; 0: from all")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app->add_option("--top-p", command->sampling.top_p, "sample from this share of the probability")
      ->check(CLI::Range(0.0, 1.0))
      ->check(finite)
      ->capture_default_str();
  add_seed_option(app, &command->sampling.seed, "of the sampling");
  CLI::Option* chat =
      app->add_flag("--chat,!--no-chat", command->chat,
                    "wrap the prompt in the model's chat template (default: if it has one)");
  add_kv_option(app, &command->kvs);
  app->callback([command, prompt, file, chat] {
    if (prompt->count() + file->count() == 0) {
      throw CLI::RequiredError("one of --prompt and --file");
    }
    const Chat mode = chat->count() == 0 ? Chat::kAuto : command->chat ? Chat::kOn : Chat::kOff;
    run_run(*command, mode);
  });
}

}  // namespace oscar::tool

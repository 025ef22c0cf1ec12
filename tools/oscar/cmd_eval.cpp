// oscar eval ppl, oscar eval kl
#include <CLI/CLI.hpp>
#include <memory>

#include "commands.h"
#include "eval_command.h"
#include "eval_commands.h"
#include "kv_options.h"

namespace oscar::tool {
namespace {

void add_one(CLI::App* parent, const std::string& name, const std::string& description,
             bool with_kl) {
  auto command = std::make_shared<EvalCommand>();
  CLI::App* app = parent->add_subcommand(name, description);
  add_eval_options(app, command.get());
  add_kv_option(app, &command->kvs);
  if (!with_kl) app->get_option("--kv")->required();
  app->callback([command, with_kl] {
    run_evaluation(*command, with_kl, [&](eval::Workbench* workbench) {
      return EvalPlan{choose_kvs(command->kvs, workbench), Json::object()};
    });
  });
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
      "the lowest and the highest tenth, 99th percentile, share of equal top tokens, perplexity, "
      "95 % intervals; and the mean by position, in powers of two. "
      "Row f16:fa-off is the floor: f16 with flash attention off, against on\n"
      "  oscar eval kl -m model.gguf -f other.txt --ctx 4096 --kv quarot:k3v2 --json r.json",
      true);
  add_eval_niah(app);
  add_eval_qa(app);
  add_eval_generate(app);
  add_eval_sweep(app);
  add_eval_layers(app);
}

}  // namespace oscar::tool

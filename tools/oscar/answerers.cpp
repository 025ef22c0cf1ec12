#include "answerers.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "command_line.h"
#include "eval/model_answerer.h"
#include "eval/server_answerer.h"
#include "eval_command.h"
#include "kv_options.h"

namespace oscar::tool {
namespace {

constexpr const char* kTokenVariable = "OPENAI_API_KEY";

Json ask_server(const AnswererOptions& options, std::string_view sample,
                const std::function<void(eval::Answerer*, std::size_t)>& ask) {
  const char* token = std::getenv(kTokenVariable);
  eval::ServerAnswerer server(
      eval::HttpClient(options.url, token == nullptr ? "" : token, &stop_flag()),
      options.server_model, sample);
  ask(&server, 1);
  Json header;
  header["version"] = OSCAR_VERSION;
  header["server"] = server.use().label;
  header["model"] = server.model();
  header["command"] = command_line();
  return header;
}

}  // namespace

void add_answerer_options(CLI::App* app, AnswererOptions* options) {
  add_common_options(app, &options->common);
  add_kv_option(app, &options->kvs);
  CLI::Option* model = app->get_option("--model")->required(false);
  CLI::Option* kv = app->get_option("--kv");
  CLI::Option* url = app->add_option(
      "--url", options->url,
      "ask an OpenAI-compatible server (llama-server, vLLM, SGLang) instead: http://host:port; "
      "$OPENAI_API_KEY is sent where it is set");
  app->add_option("--server-model", options->server_model,
                  "the server's name of the model (default: the first that it lists)")
      ->needs(url);
  url->excludes(model)->excludes(kv);
  app->parse_complete_callback([model, url, options] {
    if (model->count() + url->count() == 0) throw CLI::RequiredError("one of --model and --url");
    if (options->kvs.empty()) options->kvs = {"f16", "quarot", "oscar-plus"};
  });
}

Json for_each_answerer(const AnswererOptions& options, std::int64_t context_tokens,
                       std::string_view sample,
                       const std::function<void(eval::Answerer*, std::size_t)>& ask) {
  if (!options.url.empty()) return ask_server(options, sample, ask);
  Session session = open_session(options.common);
  eval::Workbench& workbench = *session.workbench;
  workbench.check_context(context_tokens);
  const std::vector<eval::KvChoice> kvs = choose_kvs(options.kvs, &workbench);
  for (const eval::KvChoice& kv : kvs) {
    eval::ModelAnswerer answerer(&workbench, kv, context_tokens);
    ask(&answerer, kvs.size());
  }
  return result_header(options.common, workbench);
}

}  // namespace oscar::tool

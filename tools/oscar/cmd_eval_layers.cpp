// oscar eval layers
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "eval/bootstrap.h"
#include "eval/layer_errors.h"
#include "eval/text.h"
#include "eval_command.h"
#include "eval_commands.h"
#include "eval_report.h"
#include "kv_options.h"

namespace oscar::tool {
namespace {

struct LayersCommand {
  CommonOptions common;
  std::string text;
  std::vector<std::string> kvs;
  eval::LayerErrorOptions options;
};

struct Row {
  eval::KvChoice kv;
  std::vector<eval::HeadErrors> heads;
  std::vector<eval::LayerChannels> channels;
};

// Every error of a head: its key in JSON, its heading, where it lies.
struct Measure {
  const char* key;
  const char* heading;
  double eval::HeadErrors::*field;
};
constexpr Measure kMeasures[] = {
    {"k_mse", "K MSE", &eval::HeadErrors::k_mse},
    {"v_mse", "V MSE", &eval::HeadErrors::v_mse},
    {"k_relative", "K", &eval::HeadErrors::k_relative},
    {"v_relative", "V", &eval::HeadErrors::v_relative},
    {"logit_mse", "logits", &eval::HeadErrors::logit_mse},
    {"weights_kl", "weights KL", &eval::HeadErrors::weights_kl},
    {"output_relative", "output", &eval::HeadErrors::output_relative},
    {"output_keys", "from keys", &eval::HeadErrors::output_keys},
    {"output_values", "from values", &eval::HeadErrors::output_values},
};

double mean(const std::vector<eval::HeadErrors>& heads, double eval::HeadErrors::*field) {
  double sum = 0;
  for (const eval::HeadErrors& head : heads) sum += head.*field;
  return sum / static_cast<double>(heads.size());
}

void print_layers(const Row& row) {
  std::vector<std::vector<std::string>> table = {{row.kv.label}};
  for (const Measure& measure : kMeasures) table[0].push_back(measure.heading);
  for (std::size_t begin = 0; begin < row.heads.size();) {
    std::size_t end = begin;
    while (end < row.heads.size() && row.heads[end].layer == row.heads[begin].layer) ++end;
    const std::vector<eval::HeadErrors> layer(
        row.heads.begin() + static_cast<std::ptrdiff_t>(begin),
        row.heads.begin() + static_cast<std::ptrdiff_t>(end));
    table.push_back({"layer " + std::to_string(layer.front().layer)});
    for (const Measure& measure : kMeasures) {
      table.back().push_back(format("%.4g", mean(layer, measure.field)));
    }
    begin = end;
  }
  table.push_back({"all"});
  for (const Measure& measure : kMeasures) {
    table.back().push_back(format("%.4g", mean(row.heads, measure.field)));
  }
  print_table(table);
  std::printf("\n");
}

Json row_json(const Row& row, std::uint64_t seed) {
  Json json;
  json["kv"] = row.kv.label;
  eval::BootstrapOptions bootstrap;
  bootstrap.seed = seed;
  for (const Measure& measure : kMeasures) {
    std::vector<double> values;
    for (const eval::HeadErrors& head : row.heads) values.push_back(head.*measure.field);
    json["mean"][measure.key] = mean(row.heads, measure.field);
    json["ci95"][measure.key] = interval_json(eval::bootstrap_mean(values, bootstrap));
  }
  for (const eval::HeadErrors& head : row.heads) {
    Json one = {{"layer", head.layer}, {"kv_head", head.kv_head}};
    for (const Measure& measure : kMeasures) one[measure.key] = head.*measure.field;
    json["heads"].push_back(one);
  }
  for (const eval::LayerChannels& layer : row.channels) {
    json["channels"].push_back({{"layer", layer.layer},
                                {"k", {{"raw", layer.keys.raw}, {"coded", layer.keys.coded}}},
                                {"v", {{"raw", layer.values.raw}, {"coded", layer.values.coded}}}});
  }
  return json;
}

void run_layers(const LayersCommand& command) {
  const eval::TextFile text(command.text);
  Session session = open_session(command.common);
  eval::Workbench& workbench = *session.workbench;
  workbench.check_context(command.options.num_tokens);
  std::vector<Row> rows;
  for (const eval::KvChoice& kv : choose_kvs(command.kvs, &workbench)) rows.push_back({kv, {}, {}});
  const std::vector<llama_token> tokens =
      eval::tokenize(workbench.vocab(), text.bytes(), command.options.num_tokens, false);
  if (static_cast<std::int64_t>(tokens.size()) < command.options.num_tokens) {
    throw Error(ErrorCode::kInvalidArgument,
                command.text + ": has " + std::to_string(tokens.size()) + " tokens; " +
                    std::to_string(command.options.num_tokens) + " are needed (--ctx)");
  }
  Progress progress("layers, tokens");
  eval::LayerErrorOptions options = command.options;
  options.progress = [&](std::int64_t done, std::int64_t total) { progress.update(done, total); };
  const calibrate::Statistics sample = eval::sample_rows(&workbench, tokens, options);
  progress.clear();
  const ModelFingerprint& model = workbench.file().fingerprint;
  for (Row& row : rows) {
    workbench.host().throw_if_stopped();
    row.heads = eval::layer_errors(sample, model, row.kv, workbench.num_threads());
    row.channels = eval::layer_channels(sample, model, row.kv);
    print_layers(row);
  }
  std::printf(
      "means over heads; K, V, output: squared error relative to the exact rows (K and V: about "
      "their mean); logits: squared error, nats²; weights: KL, nats a query; from keys, from "
      "values: the output's error with the other side exact\n");
  if (command.common.json.empty()) return;
  Json document = result_header(command.common, workbench);
  document["measure"] = "layers";
  document["text"] = std::filesystem::path(command.text).filename().string();
  document["ctx"] = options.num_tokens;
  document["queries"] = options.num_queries;
  document["seed"] = options.seed;
  document["results"] = Json::array();
  for (const Row& row : rows) document["results"].push_back(row_json(row, options.seed));
  write_json(command.common.json, document);
}

}  // namespace

void add_eval_layers(CLI::App* eval) {
  auto command = std::make_shared<LayersCommand>();
  CLI::App* app = eval->add_subcommand(
      "layers",
      "errors of keys, values, logits, attention weights and attention's output, per layer and "
      "head, from one pass with exact keys and values\n"
      "  oscar eval layers -m model.gguf -f other.txt --kv quarot --kv oscar-plus --json r.json");
  add_common_options(app, &command->common);
  app->add_option("-f,--file", command->text, "UTF-8 text, not the one used for calibration")
      ->required();
  app->add_option("-c,--ctx", command->options.num_tokens, "tokens of the text, from its start")
      ->check(CLI::Range(std::int64_t{64}, std::int64_t{1} << 20))
      ->capture_default_str();
  app->add_option("--queries", command->options.num_queries,
                  "tokens whose queries are looked at, all heads of each")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  add_seed_option(app, &command->options.seed, "of the choice of queries and the intervals");
  add_kv_option(app, &command->kvs);
  app->get_option("--kv")->required();
  app->callback([command] { run_layers(*command); });
}

}  // namespace oscar::tool

// oscar plan
#include <CLI/CLI.hpp>
#include <memory>

#include "base/error.h"
#include "commands.h"
#include "eval/memory_plan.h"
#include "kv_options.h"
#include "memory_sizes.h"
#include "output_file.h"
#include "support.h"

namespace oscar::tool {
namespace {

struct PlanCommand {
  CommonOptions common;
  std::int64_t ctx = 0;
  int parallel = 1;
  bool unified = true, full_sliding_cache = false;
  std::int64_t ubatch = 512;
  std::string memory;
  std::vector<std::string> kvs = {"f16", "q8_0", "q4_0", "quarot", "oscar-plus"};
};

constexpr std::size_t kNameBytes = 48;

struct Row {
  eval::KvPlan plan;
  std::int64_t fits = -1;  // tokens; −1: not asked
};

std::string window_text(const eval::PlanGroup& group) {
  return group.sliding_window == 0 ? "all" : std::to_string(group.sliding_window);
}

void print_rows(const eval::ModelLayers& model, const std::vector<Row>& rows,
                const PlanCommand& command) {
  const eval::KvPlan& first = rows.front().plan;
  const std::string architecture = one_line(model.architecture, kNameBytes);
  std::printf("%s: %s, %zu attention layers; %lld tokens of context, %d sequence%s\n",
              model.path.c_str(),
              architecture.empty() ? "model_type not given" : architecture.c_str(),
              model.layers.size(), static_cast<long long>(first.context_tokens), command.parallel,
              command.parallel == 1 ? ""
              : command.unified     ? "s that share them"
                                    : "s with an equal part each");
  std::vector<std::vector<std::string>> table = {{"KV cache", "layers", "sees", "KV heads", "cells",
                                                  "K bits", "V bits", "B a token", "codes",
                                                  "exact tokens", "copies", "total"}};
  for (const Row& row : rows) {
    for (const eval::PlanGroup& group : row.plan.groups) {
      table.push_back({row.plan.kv, std::to_string(group.layers.size()), window_text(group),
                       format("%d x %d", group.num_kv_heads, group.head_dim_k),
                       std::to_string(group.num_cells * group.num_streams),
                       format("%.4g", group.k_bits), format("%.4g", group.v_bits),
                       std::to_string(group.bytes_per_token), human_bytes(group.code_bytes),
                       std::to_string(group.num_copies), human_bytes(group.copy_bytes),
                       human_bytes(group.bytes())});
    }
  }
  print_table(table);
  std::printf("\n");
  std::vector<std::vector<std::string>> sums = {
      {"KV cache", "bits a value", "memory", "a sequence", "/ f16"}};
  if (rows.front().fits >= 0) sums.front().push_back("context in " + command.memory);
  for (const Row& row : rows) {
    const eval::KvPlan& plan = row.plan;
    sums.push_back({plan.kv, format("%.3f", plan.bits_per_value()), human_bytes(plan.bytes()),
                    human_bytes(plan.bytes_per_sequence()),
                    format("%.2f", 16.0 / plan.bits_per_value())});
    if (row.fits >= 0) {
      sums.back().push_back(row.fits == 0 ? "none" : std::to_string(row.fits) + " tokens");
    }
  }
  print_table(sums);
}

Json group_json(const eval::PlanGroup& group) {
  return {{"layers", group.layers},
          {"sliding_window", group.sliding_window},
          {"num_kv_heads", group.num_kv_heads},
          {"head_dim_k", group.head_dim_k},
          {"head_dim_v", group.head_dim_v},
          {"cells", group.num_cells * group.num_streams},
          {"k_bits", group.k_bits},
          {"v_bits", group.v_bits},
          {"bytes_per_token", group.bytes_per_token},
          {"exact_tokens", group.num_copies},
          {"code_bytes", group.code_bytes},
          {"copy_bytes", group.copy_bytes},
          {"bytes", group.bytes()}};
}

Json row_json(const Row& row) {
  const eval::KvPlan& plan = row.plan;
  Json json = {{"kv", plan.kv},
               {"method", plan.method},
               {"sink_tokens", plan.sink_tokens},
               {"recent_tokens", plan.recent_tokens},
               {"bits", plan.bits_per_value()},
               {"bytes_per_token", plan.bytes_per_token()},
               {"bytes_per_sequence", plan.bytes_per_sequence()},
               {"bytes", plan.bytes()}};
  if (row.fits >= 0) json["max_context_tokens"] = row.fits;
  json["groups"] = Json::array();
  for (const eval::PlanGroup& group : plan.groups) json["groups"].push_back(group_json(group));
  return json;
}

void run_plan(const PlanCommand& command) {
  check_distinct(command.common.model, command.common.json);
  const std::uint64_t memory =
      command.memory.empty() ? 0 : parse_memory_size("--memory", command.memory);
  const eval::ModelLayers model = eval::read_model_layers(command.common.model);
  eval::PlanOptions options;
  options.context_tokens = command.ctx > 0            ? command.ctx
                           : model.context_length > 0 ? model.context_length
                                                      : options.context_tokens;
  options.num_sequences = command.parallel;
  options.unified = command.unified;
  options.ubatch_tokens = command.ubatch;
  options.full_sliding_cache = command.full_sliding_cache;
  options.copied_sequences = copied_sequences_from_environment();
  if (model.context_length > 0 &&
      options.context_tokens > model.context_length * command.parallel) {
    note("the model was trained for " + std::to_string(model.context_length) +
         " tokens a sequence");
  }
  if (command.ctx == 0 && model.context_length == 0) {
    note("the model's file gives no length of context; planned for " +
         std::to_string(options.context_tokens) + " tokens, -c says another");
  }
  std::vector<Row> rows;
  const auto add = [&](const std::string& spec) {
    const eval::KvChoice kv = eval::choose_kv(spec);
    Row row;
    row.plan = eval::plan_memory(model, kv, options);
    if (memory > 0) row.fits = eval::longest_context(model, kv, options, memory);
    rows.push_back(std::move(row));
  };
  for (const std::string& spec : command.kvs) {
    if (spec == kAllKvs) {
      for_each_of_all([&](const std::string& one) { add(one); });
    } else {
      add(spec);
    }
  }
  print_rows(model, rows, command);
  if (command.common.json.empty()) return;
  Json document;
  document["version"] = OSCAR_VERSION;
  document["model"] = model.path;
  document["architecture"] = model.architecture;
  document["context_tokens"] = rows.front().plan.context_tokens;
  document["num_sequences"] = command.parallel;
  document["unified"] = command.unified;
  if (memory > 0) document["memory_bytes"] = memory;
  document["results"] = Json::array();
  for (const Row& row : rows) document["results"].push_back(row_json(row));
  write_json(command.common.json, document);
}

}  // namespace

void add_plan(CLI::App* program) {
  auto command = std::make_shared<PlanCommand>();
  CLI::App* app = program->add_subcommand(
      "plan",
      "what a KV cache takes, and what context fits in a memory size; nothing is loaded\n"
      "  oscar plan -m model.gguf -c 16384 --memory 2G\n"
      "  oscar plan -m config.json -c 32768 --parallel 4 --kv f16 --kv oscar-plus:k3v2");
  app->add_option("-m,--model", command->common.model,
                  "a GGUF file (its first shard), or a Hugging Face config.json")
      ->required();
  app->add_option("-c,--ctx", command->ctx,
                  "tokens of context of all sequences together (default: the model's)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  app->add_option("-p,--parallel", command->parallel, "sequences: slots of a server")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app->add_flag("--unified,!--no-unified", command->unified,
                "sequences share the cells, as llama-server's do by default; or get equal parts");
  app->add_flag("--swa-full", command->full_sliding_cache,
                "sliding-window layers keep every token, as with llama.cpp's --swa-full");
  app->add_option("--ubatch", command->ubatch, "llama.cpp's -ub")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--memory", command->memory,
                  "also say what context fits in so much: bytes, or with K, M, G, T (of 1024)");
  add_kv_option(app, &command->kvs);
  add_json_option(app, &command->common);
  app->callback([command] { run_plan(*command); });
}

}  // namespace oscar::tool

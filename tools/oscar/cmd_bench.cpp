// oscar bench decode | prefill | attention | encode | cuda
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <memory>
#include <thread>

#include "base/cpu_features.h"
#include "base/error.h"
#include "base/text.h"
#include "commands.h"
#include "eval/kernel_bench.h"
#include "eval/model_bench.h"
#include "eval/text.h"
#include "kv_options.h"
#include "support.h"

namespace oscar::tool {
namespace {

constexpr std::int64_t kTextTokens = 1 << 16;

struct BenchCommand {
  CommonOptions common;
  std::vector<std::int64_t> depths;
  std::string text, shape = "12/2/128";
  int rounds = 5, steps = 8, queries = 1;
  std::vector<std::string> kvs;
};

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

// What the JSON says about counts of instructions, and a line where there are none.
void report_instructions(const eval::InstructionCounter& counter, Json* document) {
  if (counter.reason().empty()) return;
  if (document != nullptr) (*document)["instructions_not_counted"] = counter.reason();
  std::printf("instructions are not counted: %s\n", counter.reason().c_str());
}

Json spread_json(const eval::Spread& spread) {
  return {{"median", spread.median}, {"p10", spread.p10}, {"p90", spread.p90}};
}

void check_threads(int threads) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (cores > 0 && threads > cores) {
    warn("-t " + std::to_string(threads) + " is more than the " + std::to_string(cores) +
         " processors of this machine");
  }
}

// "12/2/128": query heads, KV heads, head size.
eval::SyntheticShape parse_shape(const std::string& text, int queries) {
  int values[3] = {};
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  bool good = true;
  for (int i = 0; i < 3 && good; ++i) {
    const auto [next, status] = std::from_chars(at, end, values[i]);
    good = status == std::errc() && (i == 2 ? next == end : next != end && *next == '/');
    at = next + 1;
  }
  const auto [q_heads, kv_heads, head_dim] = values;
  if (!good || q_heads < 1 || q_heads > 4096 || kv_heads < 1 || q_heads % kv_heads != 0 ||
      head_dim < kMinHeadDim || head_dim > kMaxHeadDim || head_dim % kHeadDimMultiple != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "--shape " + in_quotes(text) +
                    "; write query heads/KV heads/head size, e.g. 12/2/128: the first a multiple "
                    "of the second, the last a multiple of 16 from 32 to 256");
  }
  eval::SyntheticShape shape;
  shape.num_q_heads = q_heads;
  shape.num_kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.num_queries = queries;
  return shape;
}

void print_model_rows(const std::vector<eval::ModelBenchRow>& rows) {
  std::vector<std::vector<std::string>> table = {
      {"KV cache", "depth", "tokens/s", "p10", "p90", "/ f16", "in attention"}};
  for (const eval::ModelBenchRow& row : rows) {
    std::string ratio = "-";
    for (const eval::ModelBenchRow& other : rows) {
      if (other.kv == "f16" && other.depth == row.depth) {
        ratio = format("%.2f", row.tokens_per_s.median / other.tokens_per_s.median);
      }
    }
    table.push_back({row.kv, std::to_string(row.depth), format("%.2f", row.tokens_per_s.median),
                     format("%.2f", row.tokens_per_s.p10), format("%.2f", row.tokens_per_s.p90),
                     ratio, format("%.0f %%", 100 * row.attention_share)});
  }
  print_table(table);
}

enum class ModelBench { kDecode, kPrefill };

void run_model_bench(const BenchCommand& command, ModelBench kind) {
  const eval::InstructionCounter instructions;  // before the first thread
  Session session = open_session(command.common);
  eval::Workbench& workbench = *session.workbench;
  check_threads(workbench.num_threads());
  eval::ModelBenchOptions options;
  options.depths = command.depths;
  options.rounds = command.rounds;
  options.steps = command.steps;
  options.instructions = &instructions;
  workbench.check_context(kind == ModelBench::kDecode
                              ? eval::decode_context_tokens(options)
                              : *std::max_element(options.depths.begin(), options.depths.end()));
  const std::vector<eval::KvChoice> kvs = choose_kvs(command.kvs, &workbench);
  const eval::TextFile text(command.text.empty() ? sample_text_path() : command.text);
  const std::vector<llama_token> tokens =
      eval::tokenize(workbench.vocab(), text.bytes(), kTextTokens, /*parse_special=*/false);
  if (tokens.empty()) throw Error(ErrorCode::kInvalidArgument, text.path() + ": has no tokens");
  Progress progress(kind == ModelBench::kDecode ? "decoding, turns" : "prompts");
  options.progress = [&](std::int64_t done, std::int64_t total) { progress.update(done, total); };
  const std::vector<eval::ModelBenchRow> rows =
      kind == ModelBench::kDecode ? eval::bench_decode(&workbench, tokens, kvs, options)
                                  : eval::bench_prefill(&workbench, tokens, kvs, options);
  progress.clear();
  print_model_rows(rows);
  if (command.common.json.empty()) return report_instructions(instructions, nullptr);
  Json document = json_header(command.common, workbench);
  report_instructions(instructions, &document);
  document["host"] = host_text();
  document["cpu"] = cpu_name();
  document["rounds"] = command.rounds;
  if (kind == ModelBench::kDecode) document["steps"] = command.steps;
  document["results"] = Json::array();
  for (const eval::ModelBenchRow& row : rows) {
    document["results"].push_back(
        {{"kv", row.kv},
         {"method", row.method},
         {"depth", row.depth},
         {"threads", row.threads},
         {"tokens_per_s", spread_json(row.tokens_per_s)},
         {"attention_share", row.attention_share},
         {"instructions_per_token", or_null(row.instructions_per_token)}});
  }
  write_json(command.common.json, document);
}

void print_kernel_rows(const std::vector<eval::KernelBenchRow>& rows, bool attends,
                       double bandwidth) {
  std::vector<std::vector<std::string>> table = {
      {"KV cache", "kernels", "depth", "us", "p10", "p90", "ns a token and head",
       "instructions a token and head", "/ f16", "GB/s", attends ? "error" : ""}};
  for (const eval::KernelBenchRow& row : rows) {
    std::string ratio = "-";
    for (const eval::KernelBenchRow& other : rows) {
      if (other.kv == "f16" && other.depth == row.depth) {
        ratio = format("%.2f", other.ns.median / row.ns.median);
      }
    }
    table.push_back({row.kv, row.kernels, std::to_string(row.depth),
                     format("%.1f", row.ns.median * 1e-3), format("%.1f", row.ns.p10 * 1e-3),
                     format("%.1f", row.ns.p90 * 1e-3), format("%.2f", row.ns_per_token),
                     row.instructions_per_token ? format("%.1f", *row.instructions_per_token) : "-",
                     ratio, format("%.2f", row.gigabytes_per_s),
                     attends ? format("%.1e", row.relative_error) : ""});
  }
  print_table(table);
  std::printf("/ f16: how often as fast; memory is read at %.1f GB/s here\n", bandwidth);
}

void run_kernel_bench(const BenchCommand& command, bool attends) {
  const eval::InstructionCounter instructions;  // before the first thread
  if (std::getenv("OSCAR_LOG") == nullptr) ::setenv("OSCAR_LOG", "-1", 1);
  eval::KernelBenchOptions options;
  options.shape = parse_shape(command.shape, attends ? command.queries : 1);
  options.depths = command.depths;
  options.rounds = command.rounds;
  options.num_threads = command.common.threads;
  options.instructions = &instructions;
  options.stop = &stop_flag();
  check_threads(options.num_threads);
  std::vector<eval::KvChoice> kvs;
  for (const std::string& spec : command.kvs) {
    kvs.push_back(eval::choose_kv(spec));
    if (kvs.back().spec.kind != KvSpec::Kind::kFile) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "--kv " + spec +
                    ": an artefact is of a model; here methods are measured on a "
                    "random layer");
  }
  const eval::Host host{eval::HostOptions{}};
  const double bandwidth = eval::read_bandwidth(options.num_threads);
  Progress progress("calls");
  options.progress = [&](std::int64_t done, std::int64_t total) { progress.update(done, total); };
  const std::vector<eval::KernelBenchRow> rows =
      attends ? eval::bench_attention(kvs, options) : eval::bench_encode(kvs, options);
  progress.clear();
  print_kernel_rows(rows, attends, bandwidth);
  if (command.common.json.empty()) return report_instructions(instructions, nullptr);
  Json document;
  report_instructions(instructions, &document);
  document["version"] = OSCAR_VERSION;
  document["host"] = host_text();
  document["cpu"] = cpu_name();
  document["shape"] = {{"num_q_heads", options.shape.num_q_heads},
                       {"num_kv_heads", options.shape.num_kv_heads},
                       {"head_dim", options.shape.head_dim},
                       {"num_queries", options.shape.num_queries}};
  document["read_gigabytes_per_s"] = bandwidth;
  document["results"] = Json::array();
  for (const eval::KernelBenchRow& row : rows) {
    Json result = {{"kv", row.kv},
                   {"method", row.method},
                   {"kernels", row.kernels},
                   {"depth", row.depth},
                   {"threads", row.threads},
                   {"ns", spread_json(row.ns)},
                   {"ns_per_token_head", row.ns_per_token},
                   {"instructions_per_token_head", or_null(row.instructions_per_token)},
                   {"bytes", row.bytes},
                   {"gigabytes_per_s", row.gigabytes_per_s}};
    if (attends) result["relative_error"] = row.relative_error;
    document["results"].push_back(result);
  }
  write_json(command.common.json, document);
}

CLI::Option* add_depths(CLI::App* app, const char* name, BenchCommand* command,
                        const std::string& what, std::int64_t lowest) {
  return app->add_option(name, command->depths, what + ", comma-separated")
      ->delimiter(',')
      ->check(CLI::Range(lowest, std::int64_t{1} << 24))
      ->capture_default_str();
}

void add_rounds(CLI::App* app, BenchCommand* command, const char* what) {
  app->add_option("--rounds", command->rounds, what)
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
}

void add_model_bench(CLI::App* bench, const char* name, ModelBench kind, const char* help) {
  auto command = std::make_shared<BenchCommand>();
  command->kvs = {"f16", "q8_0", "q4_0", "oscar-plus"};
  CLI::App* app = bench->add_subcommand(name, help);
  add_common_options(app, &command->common);
  app->add_option("-f,--file", command->text, "a UTF-8 text (default: the built-in sample)");
  if (kind == ModelBench::kDecode) {
    command->depths = {0, 4096};
    add_depths(app, "--depth", command.get(), "tokens in the cache before", 0);
    app->add_option("--steps", command->steps, "tokens decoded in a turn")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
  } else {
    command->rounds = 3;
    command->depths = {512, 4096};
    add_depths(app, "--depth,--tokens", command.get(), "tokens of the prompt", 1);
  }
  add_rounds(app, command.get(), "turns of each cache");
  add_kv_option(app, &command->kvs);
  app->callback([command, kind] { run_model_bench(*command, kind); });
}

void add_kernel_bench(CLI::App* bench, const char* name, bool attends, const char* help) {
  auto command = std::make_shared<BenchCommand>();
  command->kvs = {"f16", "q8_0", "q4_0", "oscar-plus:k2v2", "oscar-plus:k3v2", "quarot:k2v2"};
  command->rounds = 21;
  command->common.threads = 1;
  command->depths = {attends ? 4096 : 512};
  CLI::App* app = bench->add_subcommand(name, help);
  app->add_option("--shape", command->shape, "query heads/KV heads/head size")
      ->capture_default_str();
  add_depths(app, "--depth", command.get(),
             attends ? "tokens in the cache" : "tokens that arrive together", 1);
  if (attends) {
    app->add_option("--queries", command->queries, "query tokens, the last ones; 1: decoding")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
  }
  app->add_option("-t,--threads", command->common.threads, "processor threads")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  add_rounds(app, command.get(), "calls of each cache");
  add_kv_option(app, &command->kvs, /*takes_all=*/false);
  add_json_option(app, &command->common);
  app->callback([command, attends] { run_kernel_bench(*command, attends); });
}

}  // namespace

void add_bench(CLI::App* program) {
  CLI::App* bench = program->add_subcommand(
      "bench",
      "speed of KV caches side by side in one run: medians, and what 10 % lie below and above; "
      "instructions in user space, of all threads, where the processor's counters may be read "
      "(perf_event_open), else null and a line that says why");
  bench->require_subcommand(1);
  add_model_bench(bench, "decode", ModelBench::kDecode,
                  "tokens a second at several depths of the cache\n"
                  "  oscar bench decode -m model.gguf --depth 0,4096,16384 --kv f16 --kv q4_0 --kv "
                  "model.oscar.safetensors --json b.json");
  add_model_bench(bench, "prefill", ModelBench::kPrefill,
                  "tokens of a prompt a second\n"
                  "  oscar bench prefill -m model.gguf --tokens 512,4096 --kv f16 --kv oscar-plus");
  add_kernel_bench(bench, "attention", true,
                   "attention of one layer alone, ours against ggml's\n"
                   "  oscar bench attention --shape 12/2/128 --depth 4096,16384");
  add_kernel_bench(bench, "encode", false,
                   "encoding of keys and values of one layer, ours against ggml's\n"
                   "  oscar bench encode --shape 12/2/128 --depth 1,512");
  add_bench_cuda(bench);
}

}  // namespace oscar::tool

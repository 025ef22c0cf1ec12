// oscar serve
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "base/text.h"
#include "commands.h"
#include "eval/memory_plan.h"
#include "kernels/kernels.h"
#include "kv_options.h"
#include "llama_server.h"
#include "memory_sizes.h"
#include "serve_arguments.h"
#include "serve_process.h"
#include "support.h"

namespace oscar::tool {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxUbatch = 1 << 20;  // as `oscar plan --ubatch`
constexpr int kDefaultSlots = 4;              // llama-server's, which then share the cells

struct ServeCommand {
  CommonOptions common;
  std::string kv = "oscar-plus", host = "127.0.0.1", server, slot_folder;
  std::int64_t ctx = 0;
  int parallel = 0, port = 8080;
  std::vector<std::string> others;  // llama-server's
};

bool is_packed(const eval::KvChoice& kv) { return kv.spec.kind != KvSpec::Kind::kHostType; }

// llama-server's -ub, or the variable that stands for it; empty: its default. Judged here, as
// llama-server would only fail to start.
std::optional<std::int64_t> ubatch_tokens(const std::vector<std::string>& options) {
  std::string name = "-ub", text = option_value(options, {"-ub", "--ubatch-size"});
  const char* variable = std::getenv("LLAMA_ARG_UBATCH");
  if (text.empty() && variable != nullptr) {
    name = "the environment's LLAMA_ARG_UBATCH";
    text = variable;
  } else if (text.empty()) {
    return std::nullopt;
  }
  std::int64_t tokens = 0;
  const char* end = text.data() + text.size();
  const auto [rest, status] = std::from_chars(text.data(), end, tokens);
  if (status == std::errc() && rest == end && tokens >= 1 && tokens <= kMaxUbatch) return tokens;
  throw Error(ErrorCode::kInvalidArgument, name + " is " + in_quotes(text) +
                                               "; it must be a whole number from 1 to " +
                                               std::to_string(kMaxUbatch));
}

// As llama-server will have it.
eval::PlanOptions plan_options(const ServeCommand& command, const eval::ModelLayers& model) {
  eval::PlanOptions options;
  options.context_tokens = command.ctx > 0 ? command.ctx : model.context_length;
  options.num_sequences = command.parallel > 0 ? command.parallel : kDefaultSlots;
  options.unified = command.parallel == 0 || command.parallel == 1 ||
                    is_on(command.others, {"-kvu", "--kv-unified"}, "LLAMA_ARG_KV_UNIFIED");
  options.full_sliding_cache = is_on(command.others, {"--swa-full"}, "LLAMA_ARG_SWA_FULL");
  options.ubatch_tokens = ubatch_tokens(command.others).value_or(options.ubatch_tokens);
  options.copied_sequences = copied_sequences_from_environment();
  return options;
}

std::uint64_t weight_bytes(const std::string& model) {
  // All shards lie beside the first and share the name before "-00001-of-".
  const fs::path path(model);
  const std::string name = path.filename().string();
  const std::size_t mark = name.find("-00001-of-");
  if (mark == std::string::npos) return fs::file_size(path);
  std::uint64_t sum = 0;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(fs::absolute(path).parent_path())) {
    if (entry.path().filename().string().rfind(name.substr(0, mark + 1), 0) == 0) {
      sum += entry.file_size();
    }
  }
  return sum;
}

void check_memory(const eval::ModelLayers& model, const eval::KvChoice& kv,
                  const eval::PlanOptions& options, const eval::KvPlan& plan) {
  const std::uint64_t available = available_memory(), weights = weight_bytes(model.path);
  const std::uint64_t needed = plan.bytes() + weights;
  if (available == 0 || needed <= available) return;
  const std::int64_t fits =
      weights < available ? eval::longest_context(model, kv, options, available - weights) : 0;
  const bool is_whole =
      model.context_length > 0 && fits + eval::kContextMultiple > model.context_length;
  const std::string advice = fits == 0 ? "no context fits"
                                       : "-c " + std::to_string(fits) +
                                             (is_whole ? " fits, all that the model was trained for"
                                                       : " is the most that fits");
  throw Error(ErrorCode::kUnsupported,
              "a context of " + std::to_string(plan.context_tokens) + " tokens needs " +
                  human_bytes(plan.bytes()) + " for --kv " + kv.label + " and " +
                  human_bytes(weights) + " for the weights, " + human_bytes(needed) +
                  " together; " + human_bytes(available) + " of memory are available: " + advice);
}

void check_threads(int threads) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (cores > 0 && threads > cores) {
    warn("-t " + std::to_string(threads) + " is more than the " + std::to_string(cores) +
         " processors of this machine: slower, as threads wait for each other");
  }
}

// What else changes the meaning of codes, in one order however it was given.
std::string options_of(const KvSpec& spec) {
  std::string text = spec.group_size ? "group=" + std::to_string(*spec.group_size) : "";
  if (spec.bit_budget) text += (text.empty() ? "" : ",") + format("bits=%.17g", *spec.bit_budget);
  const auto add = [&text](bool set, const char* name) {
    if (set) text += (text.empty() ? "" : ",") + std::string(name);
  };
  add(spec.no_eigenbasis, "no-u");
  add(spec.no_permutation, "no-p");
  add(spec.no_hadamard, "no-hadamard");
  add(spec.no_clip, "no-clip");
  add(spec.no_mean, "no-mean");
  add(spec.unbiased, "unbiased");
  add(spec.trellis, "trellis");
  return text.empty() ? "none" : text;
}

SlotIdentity identity_of(const eval::Workbench& workbench, const eval::KvChoice& kv,
                         const eval::KvPlan& plan) {
  const ModelFingerprint& model = workbench.file().fingerprint;
  std::string artefact = "none";
  if (kv.spec.kind == KvSpec::Kind::kFile) {
    const MappedFile file(kv.spec.file);
    artefact = hash_hex(file.bytes().data(), file.bytes().size());
  }
  const eval::PlanGroup& group = plan.groups.front();
  return {{"llama.cpp", eval::llama_version_text()},
          {"model", model.architecture + " " + model.weights_hash},
          {"method", plan.method},
          {"artefact", artefact},
          {"bits of keys", group.k_bits},
          {"bits of values", group.v_bits},
          {"window", std::to_string(plan.sink_tokens) + " + " + std::to_string(plan.recent_tokens)},
          {"options", options_of(kv.spec)},
          {"streams", group.num_streams}};
}

Environment environment_for(const eval::KvChoice& kv, bool log_was_set) {
  Environment environment;
  if (!log_was_set) environment["OSCAR_LOG"] = "";
  if (!is_packed(kv)) return environment;
  environment["GGML_BACKEND_PATH"] = fs::absolute(eval::find_plugin()).string();
  std::string spec = kv.plugin_spec;
  if (kv.spec.kind == KvSpec::Kind::kFile) {
    spec = fs::absolute(kv.spec.file).string() + spec.substr(kv.spec.file.size());
  }
  environment["OSCAR_KV"] = spec;
  return environment;
}

std::vector<std::string> server_command(const ServeCommand& command, const std::string& server,
                                        const eval::KvChoice& kv, std::int64_t context) {
  std::vector<std::string> line = {server, "-m", command.common.model, "-c",
                                   std::to_string(context)};
  if (command.parallel > 0) line.insert(line.end(), {"-np", std::to_string(command.parallel)});
  if (command.common.threads > 0) {
    line.insert(line.end(), {"-t", std::to_string(command.common.threads)});
  }
  if (!is_packed(kv)) {
    line.insert(line.end(), {"-ctk", kv.spec.host_type, "-ctv", kv.spec.host_type});
  }
  if (!command.slot_folder.empty()) {
    line.insert(line.end(), {"--slot-save-path", command.slot_folder});
  }
  line.insert(line.end(), command.others.begin(), command.others.end());
  return line;
}

void run_serve(ServeCommand command) {
  kernels::selected_kernel_set();  // OSCAR_CPU that this machine lacks
  check_threads(command.common.threads);
  const bool log_was_set = std::getenv("OSCAR_LOG") != nullptr;
  if (!command.slot_folder.empty()) {
    check_slot_folder(command.slot_folder);
    command.slot_folder = fs::absolute(command.slot_folder).string();
  }
  const eval::KvChoice asked = eval::choose_kv(command.kv);
  check_server_options(command.others, is_packed(asked), !command.slot_folder.empty());
  const std::string server = find_llama_server(command.server);
  Socket listener = listen_on(command.host, command.port);
  const eval::ModelLayers model = eval::read_model_layers(command.common.model);
  if (!model.is_gguf) {
    throw Error(ErrorCode::kInvalidArgument, model.path + " is no GGUF file");
  }
  const eval::PlanOptions options = plan_options(command, model);
  const eval::KvPlan plan = eval::plan_memory(model, asked, options);
  check_memory(model, asked, options, plan);
  if (is_packed(asked)) check_llama_server(server, fs::absolute(eval::find_plugin()).string());

  eval::KvChoice kv = asked;
  SlotIdentity identity;
  {
    Session session = open_session(command.common);
    kv = choose_kvs({command.kv}, session.workbench.get()).front();
    identity = identity_of(*session.workbench, kv, plan);
  }
  note(plan.method + ", " + std::to_string(options.num_sequences) + " slots, " +
       std::to_string(options.context_tokens) + " tokens of context: " + human_bytes(plan.bytes()) +
       " for keys and values; " + server);
  const Environment environment = environment_for(kv, log_was_set);
  std::vector<std::string> line = server_command(command, server, kv, options.context_tokens);
  std::fflush(nullptr);
  if (command.slot_folder.empty()) {
    listener = Socket();
    line.insert(line.end(), {"--host", command.host, "--port", std::to_string(command.port)});
    become_process(line, environment);
  }
  const int status = serve_behind_proxy(std::move(listener), line, environment,
                                        {"", command.slot_folder, identity, options.num_sequences});
  std::fflush(nullptr);
  ::_exit(status);  // connections may still be in their threads
}

}  // namespace

void add_serve(CLI::App* program) {
  auto command = std::make_shared<ServeCommand>();
  CLI::App* app = program->add_subcommand(
      "serve",
      "llama.cpp's OpenAI-compatible server with the cache switched on; every option that is not "
      "named here is llama-server's own\n"
      "  oscar serve -m model.gguf --kv model.oscar.safetensors -c 16384 --port 8080\n"
      "  oscar serve -m model.gguf --slot-save-path slots -np 2 --context-shift");
  // As with llama-server, the last one counts.
  app->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app->add_option("-m,--model", command->common.model, "the model, a GGUF file (its first shard)")
      ->required();
  app->add_option("--kv", command->kv, "KV cache, as for `oscar run`")->capture_default_str();
  app->add_option("-c,--ctx-size,--ctx", command->ctx,
                  "tokens of context of all slots together (default: the model's)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  app->add_option(
         "--parallel", command->parallel,
         "slots, also -np; each has an equal part of the context (default: 4 that share it)")
      ->check(CLI::Range(1, 256));
  app->add_option("-t,--threads", command->common.threads,
                  "processor threads (default: llama-server's)")
      ->check(CLI::Range(1, 512));
  app->add_option("--host", command->host, "address to listen on")->capture_default_str();
  app->add_option("--port", command->port, "port to listen on")
      ->check(CLI::Range(1, 65535))
      ->capture_default_str();
  app->add_option("--slot-save-path", command->slot_folder,
                  "folder for saved slots; whole or not at all, and checked before they are used");
  app->add_option("--server", command->server,
                  "llama-server to start (default: beside llama.cpp's libraries)");
  app->add_option("OPTIONS", command->others, "further options of llama-server")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->callback([command] { run_serve(*command); });
}

}  // namespace oscar::tool

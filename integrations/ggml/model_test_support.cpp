#include "model_test_support.h"

#include <ggml-backend.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "calibrate/methods.h"

namespace oscar::ggml_plugin {
namespace {

constexpr const char* kModelFile = "oscar-kv/models/smollm2-135m-instruct-q4_1.gguf";
constexpr std::uint32_t kContextTokens = 1024;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

llama_model* load(std::vector<ggml_backend_dev_t> devices) {
  devices.push_back(nullptr);
  llama_model_params params = llama_model_default_params();
  params.devices = devices.data();
  params.n_gpu_layers = 99;
  return llama_model_load_from_file(test_model_path().c_str(), params);
}

template <typename Function>
Function proc(ggml_backend_dev_t device, const char* name) {
  return reinterpret_cast<Function>(
      ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), name));
}

std::vector<double> log_softmax(const Logits& logits) {
  double largest = -INFINITY, sum = 0;
  for (const float x : logits) largest = std::max(largest, double{x});
  for (const float x : logits) sum += std::exp(x - largest);
  std::vector<double> result;
  for (const float x : logits) result.push_back(x - largest - std::log(sum));
  return result;
}

}  // namespace

std::string test_model_path() {
  const std::string forced = environment("OSCAR_TEST_MODEL");
  if (!forced.empty()) return forced;
  std::string cache = environment("XDG_CACHE_HOME");
  if (cache.empty()) cache = environment("HOME") + "/.cache";
  const std::string path = cache + "/" + kModelFile;
  return std::filesystem::exists(path) ? path : "";
}

Host& Host::instance() {
  static Host host;
  return host;
}

Host::Host() {
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  ggml_backend_load_all_from_path(OSCAR_LLAMA_LIBRARIES);
  if (ggml_backend_load(OSCAR_PLUGIN_FILE) == nullptr)
    throw std::runtime_error("the plugin did not load");
  ggml_backend_dev_t device = ggml_backend_dev_by_name(kDeviceName);
  configure_ = proc<ConfigureFn>(device, "oscar_configure");
  last_error_ = proc<LastErrorFn>(device, "oscar_last_error");
  report_ = proc<ReportFn>(device, "oscar_report");
  set_collector_ = proc<SetCollectorFn>(device, "oscar_set_collector");
  stock_ = load({});
  with_plugin_ = load({device});
  if (stock_ == nullptr || with_plugin_ == nullptr)
    throw std::runtime_error(test_model_path() + " did not load");
  std::ifstream file(OSCAR_HELD_OUT_TEXT);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  text_.resize(text.size() + 1);
  text_.resize(llama_tokenize(llama_model_get_vocab(stock_), text.data(),
                              static_cast<int>(text.size()), text_.data(),
                              static_cast<int>(text_.size()), true, false));
}

void Host::configure(const std::string& kv_spec) {
  char error[512] = {};
  ASSERT_EQ(configure_(kv_spec.c_str(), error, sizeof error), 0) << error;
}

std::string Host::last_error() { return last_error_(); }

Report Host::report() {
  Report result;
  EXPECT_EQ(report_(&result), 0);
  return result;
}

Tokens Host::text(std::size_t num_tokens) const { return slice(text_, 0, num_tokens); }

Host::~Host() {
  if (!artefact_file_.empty()) std::filesystem::remove(artefact_file_);
}

std::string Host::calibrated(std::size_t num_tokens) {
  if (!artefact_file_.empty()) return artefact_file_;
  calibrate::Collector collector(calibrate::CollectorOptions{});
  configure("naive:k16v16");
  {
    Session session(with_plugin_);
    set_collector_(&collector);
    EXPECT_FALSE(session.decode(text(num_tokens), 0).empty());
    set_collector_(nullptr);
  }
  const calibrate::Statistics& seen = collector.statistics();
  const calibrate::LayerShape& shape = seen.layers.at(0).shape;
  const ModelFingerprint model{"",
                               static_cast<int>(seen.layers.size()),
                               shape.num_q_heads,
                               shape.num_kv_heads,
                               shape.head_dim_k,
                               shape.head_dim_v,
                               ""};
  const std::string path =
      testing::TempDir() + "oscar_model_" + std::to_string(::getpid()) + ".safetensors";
  save_artefact(calibrate::fit(seen, model, {}), path);
  return artefact_file_ = path;
}

Session::Session(llama_model* model, const Change& change) : model_(model) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = kContextTokens;
  params.n_threads = params.n_threads_batch = 2;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.no_perf = true;
  if (change) change(&params);
  context_ = llama_init_from_model(model, params);
}

Session::~Session() {
  if (context_ != nullptr) llama_free(context_);
}

std::vector<Logits> Session::decode_all(const Tokens& tokens, llama_pos first,
                                        llama_seq_id sequence) {
  const auto num_tokens = static_cast<std::int32_t>(tokens.size());
  llama_batch batch = llama_batch_init(num_tokens, 0, 1);
  batch.n_tokens = num_tokens;
  for (std::int32_t i = 0; i < num_tokens; ++i) {
    batch.token[i] = tokens[i];
    batch.pos[i] = first + i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = sequence;
    batch.logits[i] = 1;
  }
  std::vector<Logits> result;
  if (llama_decode(context_, batch) == 0) {
    const int size = llama_vocab_n_tokens(llama_model_get_vocab(model_));
    for (std::int32_t i = 0; i < num_tokens; ++i) {
      const float* logits = llama_get_logits_ith(context_, i);
      result.emplace_back(logits, logits + size);
    }
  }
  llama_batch_free(batch);
  return result;
}

Logits Session::decode(const Tokens& tokens, llama_pos first, llama_seq_id sequence) {
  const std::vector<Logits> all = decode_all(tokens, first, sequence);
  return all.empty() ? Logits() : all.back();
}

std::vector<Logits> Session::decode_together(const Tokens& tokens,
                                             const std::vector<llama_pos>& positions) {
  const auto num_tokens = static_cast<std::int32_t>(tokens.size());
  llama_batch batch = llama_batch_init(num_tokens, 0, 1);
  batch.n_tokens = num_tokens;
  for (std::int32_t i = 0; i < num_tokens; ++i) {
    batch.token[i] = tokens[i];
    batch.pos[i] = positions[i];
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = i;
    batch.logits[i] = 1;
  }
  std::vector<Logits> result;
  if (llama_decode(context_, batch) == 0) {
    const int size = llama_vocab_n_tokens(llama_model_get_vocab(model_));
    for (std::int32_t i = 0; i < num_tokens; ++i) {
      const float* logits = llama_get_logits_ith(context_, i);
      result.emplace_back(logits, logits + size);
    }
  }
  llama_batch_free(batch);
  return result;
}

std::vector<std::uint8_t> Session::save(llama_seq_id sequence, llama_state_seq_flags flags) {
  std::vector<std::uint8_t> state(llama_state_seq_get_size_ext(context_, sequence, flags));
  state.resize(llama_state_seq_get_data_ext(context_, state.data(), state.size(), sequence, flags));
  return state;
}

bool Session::restore(const std::vector<std::uint8_t>& state, llama_seq_id sequence,
                      llama_state_seq_flags flags) {
  return llama_state_seq_set_data_ext(context_, state.data(), state.size(), sequence, flags) ==
         state.size();
}

double kl_divergence(const Logits& a, const Logits& b) {
  const std::vector<double> p = log_softmax(a), q = log_softmax(b);
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += std::exp(p[i]) * (p[i] - q[i]);
  return sum;
}

double mean_kl(const std::vector<Logits>& a, const std::vector<Logits>& b) {
  double sum = 0;
  std::size_t count = 0;
  for (std::size_t i = a.size() / 2; i < a.size(); ++i, ++count) sum += kl_divergence(a[i], b[i]);
  return sum / static_cast<double>(count);
}

Tokens slice(const Tokens& tokens, std::size_t first, std::size_t count) {
  return {tokens.begin() + first, tokens.begin() + std::min(first + count, tokens.size())};
}

}  // namespace oscar::ggml_plugin

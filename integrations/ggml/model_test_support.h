// A real model under llama.cpp, with its own KV cache and with ours, for tests.
#pragma once

#include <llama.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plugin_api.h"

namespace oscar::ggml_plugin {

using Tokens = std::vector<llama_token>;
using Logits = std::vector<float>;

// Path of the test model: $OSCAR_TEST_MODEL, or where the scripts keep it. "" when there is none.
std::string test_model_path();

// One a process: llama.cpp, the plugin, and the model loaded for either device. Loading is by
// memory map, so twice costs little.
class Host {
 public:
  static Host& instance();
  llama_model* with_plugin() { return with_plugin_; }
  llama_model* stock() { return stock_; }

  void configure(const std::string& kv_spec);  // fails the test when it is refused
  std::string last_error();
  Report report();
  // File of an oscar-plus artefact calibrated on the first tokens of the held-out text; made once.
  std::string calibrated(std::size_t num_tokens);

  // The first tokens of the held-out text.
  Tokens text(std::size_t num_tokens) const;

 private:
  Host();
  ~Host();
  llama_model *with_plugin_ = nullptr, *stock_ = nullptr;
  ConfigureFn configure_ = nullptr;
  LastErrorFn last_error_ = nullptr;
  ReportFn report_ = nullptr;
  SetCollectorFn set_collector_ = nullptr;
  std::string artefact_file_;
  Tokens text_;
};

// A context. Decoding failures give empty logits.
class Session {
 public:
  using Change = std::function<void(llama_context_params*)>;
  explicit Session(llama_model* model, const Change& change = {});
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  bool ok() const { return context_ != nullptr; }
  llama_context* context() { return context_; }
  llama_memory_t memory() { return llama_get_memory(context_); }

  // Logits after the last token.
  Logits decode(const Tokens& tokens, llama_pos first, llama_seq_id sequence = 0);
  // Logits after each token.
  std::vector<Logits> decode_all(const Tokens& tokens, llama_pos first, llama_seq_id sequence = 0);
  // One token for each of several sequences in one batch; logits by sequence.
  std::vector<Logits> decode_together(const Tokens& tokens,
                                      const std::vector<llama_pos>& positions);

  std::vector<std::uint8_t> save(llama_seq_id sequence, llama_state_seq_flags flags = 0);
  bool restore(const std::vector<std::uint8_t>& state, llama_seq_id sequence,
               llama_state_seq_flags flags = 0);

 private:
  llama_model* model_;
  llama_context* context_;
};

// KL(softmax(a) ‖ softmax(b)) in nats.
double kl_divergence(const Logits& a, const Logits& b);
// Mean over the second half of two runs.
double mean_kl(const std::vector<Logits>& a, const std::vector<Logits>& b);

Tokens slice(const Tokens& tokens, std::size_t first, std::size_t count);

}  // namespace oscar::ggml_plugin

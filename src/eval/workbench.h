// One model under several KV caches: what `--kv` chooses becomes a llama.cpp context.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "eval/context.h"
#include "format/kv_spec.h"

namespace oscar::eval {

// A --kv that is ready to run: methods that need calibration have their artefact's file by now.
struct KvChoice {
  std::string label;  // as the user gave it; names the row in tables and JSON
  KvSpec spec;
  std::string plugin_spec;  // what the plugin is configured with; host types: unused
  bool flash_attention = true;
};

// What a context's cache is and holds.
struct KvUse {
  std::string method;
  double bits = 0;                      // a stored key or value, metadata and exact copies included
  double code_bits = 0;                 // without exact copies, every group of tokens full
  std::uint64_t kv_bytes = 0;           // of the tokens in it
  std::uint64_t kv_bytes_reserved = 0;  // for the whole context; 0: not known (host types)
  // Attention operations over our cache: by the plugin, and elsewhere (none, or something is
  // wrong).
  std::uint64_t num_attended = 0, num_attended_elsewhere = 0;
};

// What a measurement asks of a context beyond its cache. The fields are those of ContextOptions.
struct OpenOptions {
  std::int64_t num_tokens = 0;
  std::int64_t max_outputs = 1;
  int num_sequences = 1;
  int num_streams = 1;
  bool (*eval_callback)(ggml_tensor* node, bool ask, void* data) = nullptr;
  void* eval_callback_data = nullptr;
};

// Owns the model under every placement, each loaded when it is first needed (the weights are
// mapped, so most of their memory is shared). Not thread-safe. The host must outlive it, and it its
// contexts.
class Workbench {
 public:
  Workbench(Host* host, const std::string& model_path, int num_threads);

  const ModelFile& file() const { return file_; }
  Host& host() const { return *host_; }
  int num_threads() const { return num_threads_; }
  Model& model(Placement placement);
  // Needs no weights.
  const llama_vocab* vocab() { return model(Placement::kTokenizer).vocab(); }

  // Refuses what cannot work before any weights are loaded: a packed cache that does not fit the
  // model, an artefact of another model, a context longer than the model's.
  void check(const KvChoice& kv) const;
  void check_context(std::int64_t num_tokens) const;

  // max_outputs as in ContextOptions.
  std::unique_ptr<Context> open(const KvChoice& kv, std::int64_t num_tokens,
                                std::int64_t max_outputs);
  std::unique_ptr<Context> open(const KvChoice& kv, const OpenOptions& options);
  // Exact keys and values in our plugin, for calibration.
  std::unique_ptr<Context> open_exact(std::int64_t num_tokens);

  // Of the plugin's contexts only the one created last can be asked.
  KvUse use(const Context& context, const KvChoice& kv) const;

 private:
  std::unique_ptr<Context> open_plugin(const std::string& spec, const OpenOptions& options);
  ContextOptions context_options(const OpenOptions& options) const;

  Host* host_;
  ModelFile file_;
  int num_threads_;
  std::unique_ptr<Model> models_[kNumPlacements];
};

// f16, q8_0 or q4_0. Throws Error(kInvalidArgument).
ggml_type host_type(const std::string& name);

// Parses and completes everything but calibration. A name that is neither a method nor a file is
// refused with the list of methods.
KvChoice choose_kv(const std::string& text);
bool needs_calibration(const KvChoice& kv);
// The method's artefact lies in `artefact_path` from now on.
void use_artefact(KvChoice* kv, const std::string& artefact_path);

}  // namespace oscar::eval

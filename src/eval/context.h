// Owning wrappers of llama.cpp's model and context; failures become one-line errors.
#pragma once

#include <llama.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "eval/host.h"
#include "eval/model_file.h"

namespace oscar::eval {

inline constexpr std::int64_t kBatchTokens = 512;  // of one llama_decode

// Who owns the KV cache of the model's contexts. kTokenizer: vocabulary and chat template only, no
// weights and no contexts.
enum class Placement { kHost, kPlugin, kTokenizer };
inline constexpr int kNumPlacements = 3;

// Owns the loaded weights; must outlive its contexts. The host must outlive it.
class Model {
 public:
  // Throws Error naming the file and llama.cpp's reason.
  Model(Host* host, const ModelFile& file, Placement placement);

  Host& host() const { return *host_; }
  Placement placement() const { return placement_; }
  llama_model* get() const { return model_.get(); }
  const llama_vocab* vocab() const { return llama_model_get_vocab(model_.get()); }
  std::int64_t vocab_size() const { return llama_vocab_n_tokens(vocab()); }
  std::int64_t context_length() const { return llama_model_n_ctx_train(model_.get()); }
  const std::string& path() const { return path_; }

 private:
  struct Free {
    void operator()(llama_model* model) const { llama_model_free(model); }
  };
  Host* host_;
  std::string path_;
  Placement placement_;
  std::unique_ptr<llama_model, Free> model_;
};

struct ContextOptions {
  std::int64_t num_tokens = 0;   // cells needed; at most the model's trained context
  std::int64_t max_outputs = 1;  // rows of logits of one decode, at most kBatchTokens
  int num_threads = 1;
  ggml_type kv_type = GGML_TYPE_F16;
  bool flash_attention = true;
  int num_sequences = 1;  // that share the cells; decode() appends to the first
  // Above 1: as many sequences with num_tokens cells each of their own, for fork() and decode_on().
  int num_streams = 1;
  // llama.cpp's callback on graph nodes, as ggml_backend_sched_eval_callback; null: none.
  bool (*eval_callback)(ggml_tensor* node, bool ask, void* data) = nullptr;
  void* eval_callback_data = nullptr;
};

// One sequence, or several streams. Owns the KV cache; the model must outlive it.
class Context {
 public:
  Context(Model* model, const ContextOptions& options);

  // Appends at most kBatchTokens tokens. The last `num_outputs` of them give rows of logits, in
  // order. Throws Error(kInterrupted), or Error naming llama.cpp's or the plugin's reason.
  void decode(std::span<const llama_token> tokens, std::int64_t num_outputs);
  // The same for another stream than the first.
  void decode_on(int stream, std::span<const llama_token> tokens, std::int64_t num_outputs);
  // Stream `to` becomes a copy of `from`: codes, exact copies and all.
  void fork(int from, int to);
  // [vocab_size], valid until the next decode.
  const float* logits(std::int64_t output) const;

  void clear();                                            // forgets all tokens
  std::int64_t num_tokens() const { return num_tokens_; }  // of the first sequence
  Model& model() const { return *model_; }
  llama_context* get() const { return context_.get(); }
  // Bytes of keys and values that the written cells hold in llama.cpp's own types.
  std::uint64_t host_kv_bytes() const;

 private:
  struct Free {
    void operator()(llama_context* context) const { llama_free(context); }
  };
  Model* model_;
  std::unique_ptr<llama_context, Free> context_;
  std::int64_t num_tokens_ = 0;
};

}  // namespace oscar::eval

#include "eval/context.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace oscar::eval {
namespace {

bool wants_stop(void* host) { return static_cast<Host*>(host)->stopped(); }

bool goes_on(float, void* host) { return !static_cast<Host*>(host)->stopped(); }

std::string reason_text(Host* host) {
  const std::string reason = host->take_error();
  return reason.empty() ? "no reason given" : reason;
}

// The plugin's own reason comes first: llama.cpp then only says that the graph failed.
std::string failure_text(const Model& model) {
  if (model.placement() == Placement::kPlugin) {
    const std::string reason = model.host().plugin().last_error();
    if (!reason.empty()) return reason;
  }
  return reason_text(&model.host());
}

}  // namespace

Model::Model(Host* host, const ModelFile& file, Placement placement)
    : host_(host), path_(file.path), placement_(placement) {
  llama_model_params params = llama_model_default_params();
  ggml_backend_dev_t devices[] = {nullptr, nullptr};
  if (placement == Placement::kPlugin) devices[0] = host->plugin().device;
  params.devices = devices;
  // Every layer's cache goes to the device; its weights stay with the CPU all the same.
  params.n_gpu_layers = placement == Placement::kPlugin ? -1 : 0;
  params.vocab_only = placement == Placement::kTokenizer;
  params.progress_callback = goes_on;
  params.progress_callback_user_data = host;
  host->take_error();
  try {
    model_.reset(llama_model_load_from_file(file.path.c_str(), params));
  } catch (const std::exception& error) {  // of a vocabulary that contradicts itself
    throw Error(ErrorCode::kCorrupt,
                file.path + ": llama.cpp refuses it: " + std::string(error.what()));
  }
  host->throw_if_stopped();
  if (!model_) {
    throw Error(ErrorCode::kCorrupt, file.path + ": llama.cpp refuses it: " + reason_text(host));
  }
}

Context::Context(Model* model, const ContextOptions& options) : model_(model) {
  const std::int64_t limit = model->context_length();
  if (options.num_tokens > limit) {
    throw Error(ErrorCode::kInvalidArgument,
                model->path() + ": a context of " + std::to_string(options.num_tokens) +
                    " tokens is longer than the " + std::to_string(limit) +
                    " that the model was trained for");
  }
  llama_context_params params = llama_context_default_params();
  const int num_sequences = std::max(options.num_sequences, options.num_streams);
  params.n_ctx = static_cast<std::uint32_t>(options.num_tokens * options.num_streams);
  params.n_batch = params.n_ubatch = static_cast<std::uint32_t>(kBatchTokens);
  // llama.cpp reserves a graph with a token, and its logits, for each sequence.
  params.n_outputs_max =
      static_cast<std::uint32_t>(std::max<std::int64_t>(options.max_outputs, num_sequences));
  params.n_threads = params.n_threads_batch = options.num_threads;
  params.type_k = params.type_v = options.kv_type;
  params.flash_attn_type =
      options.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.offload_kqv = true;
  // As llama.cpp's programs do: a layer with a sliding window keeps the cells of its window only.
  params.swa_full = false;
  params.n_seq_max = static_cast<std::uint32_t>(num_sequences);
  params.kv_unified = options.num_sequences > 1 && options.num_streams == 1;
  params.cb_eval = options.eval_callback;
  params.cb_eval_user_data = options.eval_callback_data;
  params.no_perf = true;
  params.abort_callback = wants_stop;
  params.abort_callback_data = &model->host();
  model->host().take_error();
  context_.reset(llama_init_from_model(model->get(), params));
  if (!context_) {
    throw Error(ErrorCode::kUnsupported, model->path() + ": no context of " +
                                             std::to_string(options.num_tokens) +
                                             " tokens: " + failure_text(*model));
  }
}

void Context::decode(std::span<const llama_token> tokens, std::int64_t num_outputs) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  std::vector<llama_token> ids(tokens.begin(), tokens.end());
  std::vector<std::int8_t> wanted(ids.size(), 0);
  std::fill(wanted.end() - num_outputs, wanted.end(), std::int8_t{1});
  llama_batch batch = llama_batch_get_one(ids.data(), static_cast<std::int32_t>(count));
  batch.logits = wanted.data();
  const std::int32_t status = llama_decode(context_.get(), batch);
  model_->host().throw_if_stopped();
  if (status != 0) {
    throw Error(ErrorCode::kUnsupported,
                model_->path() + ": decoding tokens " + std::to_string(num_tokens_) + " to " +
                    std::to_string(num_tokens_ + count - 1) + " failed (llama.cpp status " +
                    std::to_string(status) + "): " + failure_text(*model_));
  }
  num_tokens_ += count;
}

void Context::decode_on(int stream, std::span<const llama_token> tokens, std::int64_t num_outputs) {
  std::vector<llama_token> ids(tokens.begin(), tokens.end());
  std::vector<std::int32_t> counts(ids.size(), 1);
  llama_seq_id id = stream;
  std::vector<llama_seq_id*> sequences(ids.size(), &id);
  std::vector<std::int8_t> wanted(ids.size(), 0);
  std::fill(wanted.end() - num_outputs, wanted.end(), std::int8_t{1});
  // Positions follow those that the sequence has.
  llama_batch batch = llama_batch_get_one(ids.data(), static_cast<std::int32_t>(ids.size()));
  batch.n_seq_id = counts.data();
  batch.seq_id = sequences.data();
  batch.logits = wanted.data();
  const std::int32_t status = llama_decode(context_.get(), batch);
  model_->host().throw_if_stopped();
  if (status == 0) return;
  throw Error(ErrorCode::kUnsupported, model_->path() + ": decoding " + std::to_string(ids.size()) +
                                           " tokens on stream " + std::to_string(stream) +
                                           " failed (llama.cpp status " + std::to_string(status) +
                                           "): " + failure_text(*model_));
}

void Context::fork(int from, int to) {
  llama_memory_t memory = llama_get_memory(context_.get());
  llama_memory_seq_rm(memory, to, -1, -1);
  llama_memory_seq_cp(memory, from, to, -1, -1);
}

const float* Context::logits(std::int64_t output) const {
  return llama_get_logits(context_.get()) + output * model_->vocab_size();
}

void Context::clear() {
  llama_memory_clear(llama_get_memory(context_.get()), /*data=*/true);
  num_tokens_ = 0;
}

std::uint64_t Context::host_kv_bytes() const {
  // A saved sequence is the written rows plus bookkeeping: 8 bytes for all, for each cache (one for
  // full attention, one for sliding windows) 16 and 12 a cell, for each layer 24.
  const std::uint64_t saved = llama_state_seq_get_size(context_.get(), 0);
  const auto cells = static_cast<std::uint64_t>(num_tokens_);
  std::uint64_t bookkeeping = 8 + 16 + 12 * cells;
  const auto window = static_cast<std::uint64_t>(llama_model_n_swa(model_->get()));
  if (window > 0) bookkeeping += 16 + 12 * std::min(cells, window);
  bookkeeping += 24 * static_cast<std::uint64_t>(llama_model_n_layer(model_->get()));
  return saved - std::min(saved, bookkeeping);
}

}  // namespace oscar::eval

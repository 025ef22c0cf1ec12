// What a KV cache does to each layer and head, from rows that the model computed with exact keys
// and values: errors of keys, values, logits, attention weights and the output of attention, in
// fp64.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "calibrate/collector.h"
#include "eval/workbench.h"

namespace oscar::eval {

// Of one KV head, over the sampled queries of its query heads. "Relative": squared error over the
// squared norm of the exact rows; of keys and values less their mean over the text's tokens.
struct HeadErrors {
  int layer = 0, kv_head = 0;
  double k_mse = 0, v_mse = 0;            // of codes, a value
  double k_relative = 0, v_relative = 0;  // of codes
  double logit_mse = 0;                   // over visible keys; nats²
  double weights_kl = 0;                  // KL(exact ‖ cached) of attention weights, nats a query
  double output_relative = 0;             // of attention's output
  double output_keys = 0, output_values = 0;  // the same with one side cached, the other exact
};

struct LayerErrorOptions {
  std::int64_t num_tokens = 1024;  // of the text, from its start
  std::int64_t num_queries = 128;  // sampled tokens a layer; all their query heads
  std::uint64_t seed = 1;          // of the sample
  std::function<void(std::int64_t done, std::int64_t total)> progress;  // may be null
};

// The model's rows: every token's keys and values, and some tokens' queries, of every layer.
calibrate::Statistics sample_rows(Workbench* workbench, const std::vector<llama_token>& tokens,
                                  const LayerErrorOptions& options);

// The layers ascending, the heads of each. Windows count: a query sees the first `sink` and the
// last `recent` tokens before it exactly. llama.cpp's own types throw Error(kInvalidArgument).
std::vector<HeadErrors> layer_errors(const calibrate::Statistics& rows,
                                     const ModelFingerprint& model, const KvChoice& kv,
                                     int num_threads);

// Mean square of every channel, largest first, mean over the heads: [head_dim]. "Raw": of the rows
// as the model makes them; "coded": less the method's mean, transformed.
struct SideChannels {
  std::vector<double> raw, coded;
};
struct LayerChannels {
  int layer = 0;
  SideChannels keys, values;
};
std::vector<LayerChannels> layer_channels(const calibrate::Statistics& rows,
                                          const ModelFingerprint& model, const KvChoice& kv);

// The method's parameters for the model that `rows` came from, as the plugin makes them.
Artefact artefact_for(const calibrate::Statistics& rows, const ModelFingerprint& model,
                      const KvChoice& kv);
// That of the layer; throws Error(kMismatch) where there is none.
const ArtefactLayer& layer_of(const Artefact& artefact, int layer, const KvChoice& kv);
// Null where the layer's mean is static.
std::shared_ptr<const RopeTable> rope_table(const Artefact& artefact, const ArtefactLayer& layer,
                                            const calibrate::LayerSample& sample);

// The rows that the codes of one layer stand for, all heads: [num_tokens][num_kv_heads][head_dim].
struct CachedRows {
  std::vector<float> keys, values;
};

// The errors of one head, given what its codes stand for.
HeadErrors head_errors(const calibrate::LayerStatistics& layer, const CachedRows& cached,
                       int kv_head, int sink_tokens, int recent_tokens);

}  // namespace oscar::eval

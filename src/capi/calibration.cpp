#include <memory>
#include <string>

#include "calibrate/methods.h"
#include "capi/handles.h"
#include "capi/status.h"
#include "format/artefact_check.h"

namespace oscar::capi {
namespace {

// Rotations of positions beyond it are computed, not looked up.
constexpr std::int32_t kTablePositions = 8192;

void require_at_least(const char* name, std::int64_t value, std::int64_t least) {
  if (value >= least) return;
  throw Error(ErrorCode::kInvalidArgument, std::string("rows.") + name + " is " +
                                               std::to_string(value) + "; it must be at least " +
                                               std::to_string(least));
}

void require_layer_index(std::int32_t layer) {
  if (layer >= 0 && layer < kMaxLayers) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      "layer is " + std::to_string(layer) + "; it must be 0 to " + std::to_string(kMaxLayers - 1));
}

RopeSpec rope_of(const oscar_rope& rope, int head_dim) {
  if (rope.pairing != OSCAR_ROPE_HALF_SPLIT && rope.pairing != OSCAR_ROPE_INTERLEAVED) {
    throw Error(ErrorCode::kInvalidArgument, "rope.pairing is " + std::to_string(rope.pairing) +
                                                 "; it must be 0 (half split) or 1 (interleaved)");
  }
  if (rope.num_pairs < 1 || 2 * std::int64_t{rope.num_pairs} > head_dim) {
    throw Error(ErrorCode::kInvalidArgument, "rope.num_pairs is " + std::to_string(rope.num_pairs) +
                                                 "; it must be 1 to half the head size, " +
                                                 std::to_string(head_dim / 2));
  }
  require_pointer(rope.inv_freq, "rope.inv_freq");
  return {static_cast<RopePairing>(rope.pairing),
          {rope.inv_freq, rope.inv_freq + rope.num_pairs},
          rope.magnitude};
}

const RopeTable& table_for(oscar_collector* collector, const RopeSpec& rope) {
  for (const auto& table : collector->tables) {
    if (table->spec() == rope) return *table;
  }
  return *collector->tables.emplace_back(std::make_unique<RopeTable>(rope, kTablePositions));
}

// Everything is looked at before anything is added.
void check(const oscar_layer_rows& rows) {
  if (rows.struct_bytes != sizeof rows) {
    throw Error(ErrorCode::kInvalidArgument,
                "rows.struct_bytes is " + std::to_string(rows.struct_bytes) +
                    "; this library's is " + std::to_string(sizeof rows));
  }
  require_layer_index(rows.layer);
  require_at_least("num_q_heads", rows.num_q_heads, 1);
  require_at_least("num_kv_heads", rows.num_kv_heads, 1);
  require_at_least("num_tokens", rows.num_tokens, 0);
  const PlaneLayout k{rows.head_dim_k, {16, rows.head_dim_k}};
  const PlaneLayout v{rows.head_dim_v, {16, rows.head_dim_v}};
  k.validate();
  v.validate();
  if (rows.num_q_heads % rows.num_kv_heads != 0) {
    throw Error(ErrorCode::kInvalidArgument, "rows.num_q_heads is " +
                                                 std::to_string(rows.num_q_heads) +
                                                 "; it must be a multiple of num_kv_heads, " +
                                                 std::to_string(rows.num_kv_heads));
  }
  if (rows.num_tokens == 0) return;
  require_pointer(rows.positions, "rows.positions");
  require_pointer(rows.queries, "rows.queries");
  require_pointer(rows.keys, "rows.keys");
  require_pointer(rows.values, "rows.values");
  require_pointer(rows.outputs, "rows.outputs");
  for (std::int64_t i = 0; i < rows.num_tokens; ++i) {
    if (rows.positions[i] >= 0) continue;
    throw Error(ErrorCode::kInvalidArgument, "rows.positions[" + std::to_string(i) + "] is " +
                                                 std::to_string(rows.positions[i]) +
                                                 "; it must be at least 0");
  }
}

void add(oscar_collector* collector, const oscar_layer_rows& rows) {
  check(rows);
  const calibrate::LayerShape shape{rows.num_q_heads, rows.num_kv_heads, rows.head_dim_k,
                                    rows.head_dim_v};
  RopeSpec rope;
  const RopeTable* table = nullptr;
  if (rows.rope != nullptr) {
    rope = rope_of(*rows.rope, rows.head_dim_k);
    table = &table_for(collector, rope);
  }
  const std::int64_t dk = rows.head_dim_k, dv = rows.head_dim_v;
  calibrate::Collector& to = collector->collector;
  to.on_keys(rows.layer, shape, table == nullptr ? nullptr : &rope, table, rows.keys,
             rows.num_kv_heads * dk, dk, rows.positions, rows.num_tokens);
  to.on_values(rows.layer, shape, rows.values, rows.num_kv_heads * dv, dv, rows.num_tokens);
  to.on_attention(rows.layer, shape, rows.scale, rows.queries, rows.num_q_heads * dk, dk,
                  rows.outputs, rows.num_q_heads * dv, dv, rows.positions, rows.num_tokens);
}

const calibrate::HeadStatistics& head_of(const oscar_collector& collector, std::int32_t layer,
                                         std::int32_t kv_head) {
  const auto& layers = collector.collector.statistics().layers;
  const auto found = layers.find(layer);
  if (found == layers.end()) {
    throw Error(ErrorCode::kNotFound, "layer " + std::to_string(layer) + " has no statistics; " +
                                          std::to_string(layers.size()) + " layers have");
  }
  const auto& heads = found->second.heads;
  if (kv_head < 0 || kv_head >= std::ssize(heads)) {
    throw Error(ErrorCode::kInvalidArgument, "kv_head is " + std::to_string(kv_head) +
                                                 "; it must be 0 to " +
                                                 std::to_string(std::ssize(heads) - 1));
  }
  return heads[kv_head];
}

// The model that the statistics are of. Layers of other shapes are refused by the artefact's check.
ModelFingerprint fingerprint(const calibrate::Statistics& statistics, const char* architecture,
                             const char* weights_hash) {
  ModelFingerprint model;
  model.architecture = architecture == nullptr ? "" : architecture;
  model.weights_hash = weights_hash == nullptr ? "" : weights_hash;
  model.num_layers = static_cast<int>(statistics.layers.size());
  if (statistics.layers.empty()) return model;
  const calibrate::LayerShape& shape = statistics.layers.begin()->second.shape;
  model.num_q_heads = shape.num_q_heads;
  model.num_kv_heads = shape.num_kv_heads;
  model.head_dim_k = shape.head_dim_k;
  model.head_dim_v = shape.head_dim_v;
  return model;
}

}  // namespace
}  // namespace oscar::capi

using oscar::capi::guarded;
using oscar::capi::require_pointer;

extern "C" {

oscar_status oscar_collector_create(uint64_t seed, oscar_collector** out) {
  return guarded([&] {
    require_pointer(out, "out");
    oscar::calibrate::CollectorOptions options;
    options.seed = seed;
    *out = new oscar_collector{oscar::calibrate::Collector(options), {}};
    return OSCAR_OK;
  });
}

void oscar_collector_free(oscar_collector* collector) { delete collector; }

oscar_status oscar_collector_add(oscar_collector* collector, const oscar_layer_rows* rows) {
  return guarded([&] {
    require_pointer(collector, "collector");
    require_pointer(rows, "rows");
    oscar::capi::add(collector, *rows);
    return OSCAR_OK;
  });
}

int64_t oscar_collector_num_non_finite(const oscar_collector* collector) {
  return collector == nullptr ? -1 : collector->collector.statistics().num_non_finite;
}

oscar_status oscar_collector_head(const oscar_collector* collector, int32_t layer, int32_t kv_head,
                                  oscar_head_statistics* out) {
  return guarded([&] {
    require_pointer(collector, "collector");
    require_pointer(out, "out");
    const oscar::calibrate::HeadStatistics& head = oscar::capi::head_of(*collector, layer, kv_head);
    *out = {head.num_queries,
            head.num_tokens,
            head.num_values,
            head.query_covariance.data(),
            head.output_covariance.data(),
            head.key_mean_sum.data(),
            head.key_square_sum.data(),
            head.value_mean_sum.data()};
    return OSCAR_OK;
  });
}

oscar_status oscar_fit(const oscar_collector* collector, const char* method,
                       const char* architecture, const char* weights_hash, int32_t num_threads,
                       oscar_artefact** out) {
  return guarded([&] {
    require_pointer(collector, "collector");
    require_pointer(method, "method");
    require_pointer(out, "out");
    oscar::calibrate::FitOptions options;
    options.method = oscar::method_from_name(method);
    if (!oscar::calibrate::needs_statistics(options.method)) {
      throw oscar::Error(oscar::ErrorCode::kInvalidArgument,
                         std::string("method '") + method +
                             "' needs no calibration; calibrated methods: " +
                             oscar::calibrate::calibrated_method_names());
    }
    if (num_threads < 1) {
      throw oscar::Error(
          oscar::ErrorCode::kInvalidArgument,
          "num_threads is " + std::to_string(num_threads) + "; it must be at least 1");
    }
    options.num_threads = num_threads;
    const oscar::calibrate::Statistics& statistics = collector->collector.statistics();
    *out = std::make_unique<oscar_artefact>(
               oscar::calibrate::fit(
                   statistics, oscar::capi::fingerprint(statistics, architecture, weights_hash),
                   options),
               "artefact")
               .release();
    return OSCAR_OK;
  });
}

}  // extern "C"

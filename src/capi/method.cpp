#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"
#include "calibrate/methods.h"
#include "capi/handles.h"
#include "capi/status.h"
#include "format/kv_spec.h"
#include "methods/definition.h"

namespace oscar::capi {
namespace {

void require_at_least_one(const char* name, std::int64_t value) {
  if (value >= 1) return;
  throw Error(ErrorCode::kInvalidArgument, std::string("model: ") + name + " is " +
                                               std::to_string(value) + "; it must be at least 1");
}

Artefact data_free(Method method, const oscar_model& model) {
  require_at_least_one("num_layers", model.num_layers);
  require_at_least_one("num_kv_heads", model.num_kv_heads);
  require_at_least_one("num_q_heads", model.num_q_heads);
  if (model.num_q_heads % model.num_kv_heads != 0) {
    throw Error(ErrorCode::kInvalidArgument, "model: num_q_heads is " +
                                                 std::to_string(model.num_q_heads) +
                                                 "; it must be a multiple of num_kv_heads, " +
                                                 std::to_string(model.num_kv_heads));
  }
  const ModelFingerprint fingerprint{"",
                                     model.num_layers,
                                     model.num_q_heads,
                                     model.num_kv_heads,
                                     model.head_dim_k,
                                     model.head_dim_v,
                                     ""};
  std::vector<calibrate::LayerIndexShape> layers;
  for (int layer = 0; layer < model.num_layers; ++layer) {
    layers.push_back(
        {layer, {model.num_q_heads, model.num_kv_heads, model.head_dim_k, model.head_dim_v}});
  }
  return calibrate::make_data_free(method, fingerprint, layers);
}

void require_shape(const Artefact& artefact, const oscar_model& model, const std::string& file) {
  const ModelFingerprint& made_for = artefact.model;
  const auto require_equal = [&](const char* name, int in_file, int wanted) {
    if (in_file == wanted) return;
    throw Error(ErrorCode::kMismatch, file + ": its model has " + name + " " +
                                          std::to_string(in_file) + "; this one has " +
                                          std::to_string(wanted));
  };
  require_equal("num_layers", made_for.num_layers, model.num_layers);
  require_equal("num_q_heads", made_for.num_q_heads, model.num_q_heads);
  require_equal("num_kv_heads", made_for.num_kv_heads, model.num_kv_heads);
  require_equal("head_dim_k", made_for.head_dim_k, model.head_dim_k);
  require_equal("head_dim_v", made_for.head_dim_v, model.head_dim_v);
}

// Bits of a side; 0 where layers differ.
int common_bits(const Artefact& artefact,
                QuantSpec (*quant_of)(const Artefact&, const ArtefactLayer&)) {
  const int bits = quant_of(artefact, artefact.layers.front()).bits;
  for (const ArtefactLayer& layer : artefact.layers) {
    if (quant_of(artefact, layer).bits != bits) return 0;
  }
  return bits;
}

oscar_method* open(const char* kv, const oscar_model* model) {
  const KvSpec spec = parse_kv_spec(kv);
  auto method = std::make_unique<oscar_method>();
  switch (spec.kind) {
    case KvSpec::Kind::kHostType:
      throw Error(ErrorCode::kInvalidArgument,
                  "kv '" + spec.host_type + "' is a cache type of llama.cpp; here: " +
                      calibrate::data_free_method_names() + " or an artefact file");
    case KvSpec::Kind::kMethod:
      require_pointer(model, "model");
      method->artefact = data_free(spec.method, *model);
      break;
    case KvSpec::Kind::kFile:
      method->artefact = load_artefact(spec.file);
      if (model != nullptr) require_shape(method->artefact, *model, spec.file);
      break;
  }
  calibrate::apply_kv_spec(spec, &method->artefact);
  method->sink_tokens = spec.sink_tokens;
  method->recent_tokens = spec.recent_tokens;
  method->force_float = spec.force_float;
  return method.release();
}

}  // namespace
}  // namespace oscar::capi

extern "C" {

oscar_status oscar_method_open(const char* kv, const oscar_model* model, oscar_method** out) {
  return oscar::capi::guarded([&] {
    oscar::capi::require_pointer(kv, "kv");
    oscar::capi::require_pointer(out, "out");
    *out = oscar::capi::open(kv, model);
    return OSCAR_OK;
  });
}

void oscar_method_free(oscar_method* method) { delete method; }

oscar_status oscar_method_describe(const oscar_method* method, oscar_method_info* out) {
  return oscar::capi::guarded([&] {
    oscar::capi::require_pointer(method, "method");
    oscar::capi::require_pointer(out, "out");
    const oscar::Artefact& artefact = method->artefact;
    oscar_method_info info = {};
    const char* const name = oscar::method_name(artefact.method);
    std::memcpy(info.name, name, std::min(std::strlen(name), sizeof info.name - 1));
    info.model = {artefact.model.num_layers, artefact.model.num_q_heads,
                  artefact.model.num_kv_heads, artefact.model.head_dim_k,
                  artefact.model.head_dim_v};
    info.k_bits = oscar::capi::common_bits(artefact, oscar::key_quant);
    info.v_bits = oscar::capi::common_bits(artefact, oscar::value_quant);
    double bits = 0, values = 0;
    for (const oscar::ArtefactLayer& layer : artefact.layers) {
      const oscar::methods::SideBytes bytes = oscar::methods::bytes_per_token(artefact, layer);
      bits += 8.0 * (bytes.keys + bytes.values);
      values += static_cast<double>(layer.num_kv_heads) * (layer.head_dim_k + layer.head_dim_v);
    }
    info.bits_per_value = bits / values;
    info.sink_tokens = method->sink_tokens;
    info.recent_tokens = method->recent_tokens;
    *out = info;
    return OSCAR_OK;
  });
}

}  // extern "C"

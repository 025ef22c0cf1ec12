#include "format/artefact.h"

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/text.h"

namespace oscar {
namespace {

void compare(const char* field, const std::string& artefact, const std::string& model) {
  if (artefact == model) return;
  throw Error(ErrorCode::kMismatch, std::string("the artefact was made for a model with ") + field +
                                        " " + artefact + ", this model has " + model +
                                        "; calibrate this model");
}

void compare(const char* field, int artefact, int model) {
  compare(field, std::to_string(artefact), std::to_string(model));
}

}  // namespace

QuantSpec key_quant(const Artefact& artefact, const ArtefactLayer& layer) {
  QuantSpec quant = artefact.k_quant;
  if (layer.k_bits != 0) quant.bits = layer.k_bits;
  return quant;
}

QuantSpec value_quant(const Artefact& artefact, const ArtefactLayer& layer) {
  QuantSpec quant = artefact.v_quant;
  if (layer.v_bits != 0) quant.bits = layer.v_bits;
  return quant;
}

Artefact load_artefact(const std::string& path) {
  const MappedFile file(path);
  return parse_artefact(file.bytes().data(), file.bytes().size(), path);
}

void check_fingerprint(const Artefact& artefact, const ModelFingerprint& model) {
  const ModelFingerprint& made_for = artefact.model;
  compare("architecture", in_quotes(made_for.architecture), in_quotes(model.architecture));
  compare("num_layers", made_for.num_layers, model.num_layers);
  compare("num_q_heads", made_for.num_q_heads, model.num_q_heads);
  compare("num_kv_heads", made_for.num_kv_heads, model.num_kv_heads);
  compare("head_dim_k", made_for.head_dim_k, model.head_dim_k);
  compare("head_dim_v", made_for.head_dim_v, model.head_dim_v);
  if (!made_for.weights_hash.empty() && !model.weights_hash.empty()) {
    compare("weights_hash", in_quotes(made_for.weights_hash), in_quotes(model.weights_hash));
  }
}

}  // namespace oscar

// Energies of channels before and after a method's transform, and the method's parameters.
#include <algorithm>
#include <functional>

#include "base/error.h"
#include "calibrate/methods.h"
#include "eval/layer_errors.h"

namespace oscar::eval {
namespace {

// One side of a layer: [num_tokens][num_heads][head_dim].
struct Side {
  const std::vector<float>& rows;
  int num_heads, head_dim;
  const std::vector<float>& transform;  // [num_heads][head_dim][head_dim]
  // What the method takes off the row of a head at a token, in place.
  std::function<void(std::vector<double>*, std::size_t token, int head)> subtract_mean;
};

void add_squares(const std::vector<double>& row, std::vector<double>* sum) {
  for (std::size_t i = 0; i < row.size(); ++i) (*sum)[i] += row[i] * row[i];
}

std::vector<double> times(const std::vector<double>& row, const float* matrix) {
  std::vector<double> product(row.size(), 0);
  for (std::size_t i = 0; i < row.size(); ++i) {
    const float* line = matrix + i * row.size();
    for (std::size_t j = 0; j < row.size(); ++j) {
      product[j] += row[i] * static_cast<double>(line[j]);
    }
  }
  return product;
}

void add_sorted(std::vector<double> energies, double weight, std::vector<double>* mean) {
  std::sort(energies.rbegin(), energies.rend());
  for (std::size_t i = 0; i < energies.size(); ++i) (*mean)[i] += weight * energies[i];
}

SideChannels side_channels(const Side& side) {
  const auto dim = static_cast<std::size_t>(side.head_dim);
  const std::size_t stride = static_cast<std::size_t>(side.num_heads) * dim;
  const std::size_t num_tokens = side.rows.size() / stride;
  SideChannels channels{std::vector<double>(dim, 0), std::vector<double>(dim, 0)};
  const double weight = 1.0 / (static_cast<double>(num_tokens) * side.num_heads);
  for (int head = 0; head < side.num_heads; ++head) {
    std::vector<double> raw(dim, 0), coded(dim, 0);
    for (std::size_t token = 0; token < num_tokens; ++token) {
      const float* begin = side.rows.data() + token * stride + static_cast<std::size_t>(head) * dim;
      std::vector<double> row(begin, begin + dim);
      add_squares(row, &raw);
      side.subtract_mean(&row, token, head);
      const bool identity = side.transform.empty();
      add_squares(
          identity ? row
                   : times(row, side.transform.data() + static_cast<std::size_t>(head) * dim * dim),
          &coded);
    }
    add_sorted(std::move(raw), weight, &channels.raw);
    add_sorted(std::move(coded), weight, &channels.coded);
  }
  return channels;
}

}  // namespace

Artefact artefact_for(const calibrate::Statistics& rows, const ModelFingerprint& model,
                      const KvChoice& kv) {
  Artefact artefact;
  if (kv.spec.kind == KvSpec::Kind::kFile) {
    artefact = load_artefact(kv.spec.file);
  } else if (kv.spec.kind == KvSpec::Kind::kMethod) {
    std::vector<calibrate::LayerIndexShape> shapes;
    for (const auto& [index, layer] : rows.layers) shapes.push_back({index, layer.shape});
    artefact = calibrate::make_data_free(kv.spec.method, model, shapes);
  } else {
    throw Error(ErrorCode::kInvalidArgument,
                "--kv " + kv.label +
                    ": llama.cpp's own cache cannot be looked into; give a method or an artefact");
  }
  calibrate::apply_kv_spec(kv.spec, &artefact);
  return artefact;
}

const ArtefactLayer& layer_of(const Artefact& artefact, int layer, const KvChoice& kv) {
  const auto found = std::find_if(artefact.layers.begin(), artefact.layers.end(),
                                  [&](const ArtefactLayer& one) { return one.layer == layer; });
  if (found != artefact.layers.end()) return *found;
  throw Error(ErrorCode::kMismatch, "--kv " + kv.label + ": has no layer " + std::to_string(layer));
}

std::shared_ptr<const RopeTable> rope_table(const Artefact& artefact, const ArtefactLayer& layer,
                                            const calibrate::LayerSample& sample) {
  if (layer.rope < 0) return nullptr;
  const auto last = std::max_element(sample.key_positions.begin(), sample.key_positions.end());
  return std::make_shared<RopeTable>(artefact.ropes[static_cast<std::size_t>(layer.rope)],
                                     last == sample.key_positions.end() ? 0 : *last);
}

std::vector<LayerChannels> layer_channels(const calibrate::Statistics& rows,
                                          const ModelFingerprint& model, const KvChoice& kv) {
  const Artefact artefact = artefact_for(rows, model, kv);
  std::vector<LayerChannels> result;
  for (const auto& [index, layer] : rows.layers) {
    const ArtefactLayer& fitted = layer_of(artefact, index, kv);
    const std::shared_ptr<const RopeTable> rope = rope_table(artefact, fitted, layer.sample);
    const calibrate::LayerShape& shape = layer.shape;
    const auto less_key_mean = [&](std::vector<double>* row, std::size_t token, int head) {
      if (fitted.k_mean.empty()) return;
      const float* mean = fitted.k_mean.data() + static_cast<std::size_t>(head) * row->size();
      std::vector<float> turned(mean, mean + row->size());
      if (rope) rope->rotate(turned.data(), layer.sample.key_positions[token]);
      for (std::size_t i = 0; i < row->size(); ++i) (*row)[i] -= static_cast<double>(turned[i]);
    };
    const auto less_value_mean = [&](std::vector<double>* row, std::size_t, int head) {
      if (fitted.v_mean.empty()) return;
      const float* mean = fitted.v_mean.data() + static_cast<std::size_t>(head) * row->size();
      for (std::size_t i = 0; i < row->size(); ++i) (*row)[i] -= static_cast<double>(mean[i]);
    };
    LayerChannels channels;
    channels.layer = index;
    channels.keys = side_channels({layer.sample.keys, shape.num_kv_heads, shape.head_dim_k,
                                   fitted.k_transform, less_key_mean});
    channels.values = side_channels({layer.sample.values, shape.num_kv_heads, shape.head_dim_v,
                                     fitted.v_transform, less_value_mean});
    result.push_back(std::move(channels));
  }
  return result;
}

}  // namespace oscar::eval

#include "artefact_report.h"

#include <cmath>
#include <numeric>

#include "base/error.h"

namespace oscar::tool {
namespace {

std::string quant_text(const QuantSpec& quant) {
  if (quant.bits == 16) return "16 bits, exact";
  const char* codebook = quant.codebook == Codebook::kAffine ? "affine" : "symmetric";
  const char* fit = quant.scale_fit == ScaleFit::kUnbiased       ? ", unbiased scale"
                    : quant.scale_fit == ScaleFit::kLeastSquares ? ", least-squares scale"
                                                                 : "";
  return format("%d bits, groups of %d, %s levels%s", quant.bits, quant.group_size, codebook, fit);
}

std::string transform_text(const Artefact& artefact) {
  std::string text;
  switch (artefact.method) {
    case Method::kNaive: return "none";
    case Method::kQuarot: text = "H"; break;
    case Method::kOscar: text = "U"; break;
    case Method::kOscarPlus: text = artefact.key_smoothing ? "diag(1/s)" : ""; break;
  }
  if (artefact.hadamard && artefact.method != Method::kQuarot) text += text.empty() ? "H" : "·H";
  if (artefact.hadamard && artefact.method == Method::kOscar) text += "·P";
  return text.empty() ? "none" : text;
}

// Participation ratio (Σλ)²/Σλ² of each head's spectrum over its size, averaged: 1 when all
// channels matter alike, 1/head_dim when one does. NaN: no spectrum.
double spectrum_spread(const std::vector<float>& spectrum, int num_heads) {
  if (spectrum.empty() || num_heads == 0) return std::nan("");
  const std::size_t head_dim = spectrum.size() / static_cast<std::size_t>(num_heads);
  double spread = 0;
  for (std::size_t head = 0; head < static_cast<std::size_t>(num_heads); ++head) {
    double sum = 0, squares = 0;
    for (std::size_t i = 0; i < head_dim; ++i) {
      const double value = static_cast<double>(spectrum[head * head_dim + i]);
      sum += value;
      squares += value * value;
    }
    if (squares > 0) spread += sum * sum / squares / static_cast<double>(head_dim);
  }
  return spread / num_heads;
}

double mean_clip(const std::array<std::vector<float>, kNumClipBits>& clips, int bits) {
  if (bits == 16) return 1;
  const std::vector<float>& clip = clips[static_cast<std::size_t>(clip_index(bits))];
  if (clip.empty()) return 1;
  return std::accumulate(clip.begin(), clip.end(), 0.0) / static_cast<double>(clip.size());
}

std::string figure(const char* pattern, double value) {
  if (std::isnan(value)) return "-";
  std::string text(32, '\0');
  text.resize(static_cast<std::size_t>(std::snprintf(text.data(), text.size(), pattern, value)));
  return text;
}

Json number_or_null(double value) { return std::isnan(value) ? Json() : Json(value); }

}  // namespace

void print_layers(const Artefact& artefact) {
  std::vector<std::vector<std::string>> table = {{"layer", "KV heads", "head size", "K spread",
                                                  "V spread", "K clip", "V clip", "K error",
                                                  "V error"}};
  for (const ArtefactLayer& layer : artefact.layers) {
    table.push_back({std::to_string(layer.layer), std::to_string(layer.num_kv_heads),
                     layer.head_dim_k == layer.head_dim_v ? std::to_string(layer.head_dim_k)
                                                          : std::to_string(layer.head_dim_k) + "/" +
                                                                std::to_string(layer.head_dim_v),
                     figure("%.3f", spectrum_spread(layer.k_spectrum, layer.num_kv_heads)),
                     figure("%.3f", spectrum_spread(layer.v_spectrum, layer.num_kv_heads)),
                     figure("%.3f", mean_clip(layer.k_clip, artefact.k_quant.bits)),
                     figure("%.3f", mean_clip(layer.v_clip, artefact.v_quant.bits)),
                     figure("%.4f", static_cast<double>(layer.k_error)),
                     figure("%.4f", static_cast<double>(layer.v_error))});
  }
  print_table(table);
  std::printf(
      "spread: share of channels that carry the spectrum, (Σλ)²/(d·Σλ²); clip: quantile of a "
      "row's magnitudes; error: squared error of logits and outputs, relative\n");
}

void print_artefact(const Artefact& artefact) {
  const ModelFingerprint& model = artefact.model;
  print_table(
      {{"method", method_name(artefact.method)},
       {"key transform", transform_text(artefact)},
       {"keys", quant_text(artefact.k_quant)},
       {"values", quant_text(artefact.v_quant)},
       {"model", format("%s, %d layers, %d query heads, %d KV heads, head size %d/%d",
                        one_line(model.architecture, 60).c_str(), model.num_layers,
                        model.num_q_heads, model.num_kv_heads, model.head_dim_k, model.head_dim_v)},
       {"weights hash", model.weights_hash.empty() ? "not recorded" : model.weights_hash}});
  for (const auto& [key, value] : artefact.info) {
    std::printf("%s: %s\n", one_line(key, 60).c_str(), one_line(value, 200).c_str());
  }
  print_layers(artefact);
}

Json artefact_json(const Artefact& artefact) {
  const auto quant_json = [](const QuantSpec& quant) {
    return Json{{"bits", quant.bits},
                {"group_size", quant.group_size},
                {"codebook", quant.codebook == Codebook::kAffine ? "affine" : "symmetric"},
                {"text", quant_text(quant)}};
  };
  const ModelFingerprint& model = artefact.model;
  Json json;
  json["version"] = OSCAR_VERSION;
  json["method"] = method_name(artefact.method);
  json["key_transform"] = transform_text(artefact);
  json["key_smoothing"] = artefact.key_smoothing;
  json["hadamard"] = artefact.hadamard;
  json["keys"] = quant_json(artefact.k_quant);
  json["values"] = quant_json(artefact.v_quant);
  json["model"] = {{"architecture", model.architecture}, {"num_layers", model.num_layers},
                   {"num_q_heads", model.num_q_heads},   {"num_kv_heads", model.num_kv_heads},
                   {"head_dim_k", model.head_dim_k},     {"head_dim_v", model.head_dim_v},
                   {"weights_hash", model.weights_hash}};
  json["info"] = artefact.info;
  json["layers"] = Json::array();
  for (const ArtefactLayer& layer : artefact.layers) {
    json["layers"].push_back(
        {{"layer", layer.layer},
         {"num_kv_heads", layer.num_kv_heads},
         {"head_dim_k", layer.head_dim_k},
         {"head_dim_v", layer.head_dim_v},
         {"k_spread", number_or_null(spectrum_spread(layer.k_spectrum, layer.num_kv_heads))},
         {"v_spread", number_or_null(spectrum_spread(layer.v_spectrum, layer.num_kv_heads))},
         {"k_clip", mean_clip(layer.k_clip, artefact.k_quant.bits)},
         {"v_clip", mean_clip(layer.v_clip, artefact.v_quant.bits)},
         {"k_error", layer.k_error},
         {"v_error", layer.v_error},
         {"key_mean", !layer.k_mean.empty()},
         {"value_mean", !layer.v_mean.empty()}});
  }
  return json;
}

}  // namespace oscar::tool

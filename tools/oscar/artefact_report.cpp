#include "artefact_report.h"

#include <cmath>
#include <numeric>

#include "methods/hadamard.h"

namespace oscar::tool {
namespace {

std::string quant_text(const QuantSpec& quant) {
  if (quant.bits == 16) return "16 bits, exact";
  const char* codebook = codebook_name(quant.codebook);
  const char* fit = quant.scale_fit == ScaleFit::kUnbiased       ? ", unbiased scale"
                    : quant.scale_fit == ScaleFit::kLeastSquares ? ", least-squares scale"
                                                                 : "";
  return format("%d bits, groups of %d, %s levels%s", quant.bits, quant.group_size, codebook, fit);
}

// What one side's matrices are, told from their entries: the Hadamard mix alone, another rotation
// (of an eigenbasis), or one with a scale a channel, whose inverse is stored.
std::string transform_text(const std::vector<float>& transform, bool has_inverse, int head_dim) {
  if (has_inverse) return "smoothed";
  if (transform.empty()) return "none";
  const std::vector<float> mix = methods::hadamard_times_p(head_dim);
  constexpr float kTolerance = 1e-5f;  // of an entry; those of the mix are at least 1/16
  bool is_mix = true, is_identity = true;
  for (std::size_t i = 0; i < transform.size(); ++i) {
    const std::size_t entry = i % mix.size();
    const bool diagonal = entry % static_cast<std::size_t>(head_dim + 1) == 0;
    is_mix = is_mix && std::abs(transform[i] - mix[entry]) < kTolerance;
    is_identity = is_identity && std::abs(transform[i] - (diagonal ? 1.0f : 0.0f)) < kTolerance;
  }
  return is_mix ? "Hadamard" : is_identity ? "none" : "rotated";
}

std::string key_transform_text(const ArtefactLayer& layer) {
  return transform_text(layer.k_transform, !layer.k_transform_inverse_transposed.empty(),
                        layer.head_dim_k);
}

std::string value_transform_text(const ArtefactLayer& layer) {
  return transform_text(layer.v_transform, !layer.v_inverse.empty(), layer.head_dim_v);
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

// Why layers have the bits that they have.
void print_bit_losses(const Artefact& artefact) {
  std::vector<std::vector<std::string>> table = {
      {"layer", "K bits", "V bits", "K loss at 2", "at 3", "at 4", "V loss at 2", "at 3", "at 4"}};
  for (const ArtefactLayer& layer : artefact.layers) {
    table.push_back({std::to_string(layer.layer), std::to_string(key_quant(artefact, layer).bits),
                     std::to_string(value_quant(artefact, layer).bits)});
    for (const std::vector<float>* losses : {&layer.k_losses, &layer.v_losses}) {
      for (const float loss : *losses)
        table.back().push_back(figure("%.5f", static_cast<double>(loss)));
    }
  }
  print_table(table);
  std::printf(
      "loss: nats a token of the model's predictions with this side alone at so many bits; bits "
      "went where the loss falls most for its bytes\n");
}

void print_layers_alone(const Artefact& artefact) {
  std::vector<std::vector<std::string>> table = {{"layer", "KV heads", "head size", "K basis",
                                                  "V basis", "K spread", "V spread", "K clip",
                                                  "V clip", "K error", "V error"}};
  for (const ArtefactLayer& layer : artefact.layers) {
    table.push_back({std::to_string(layer.layer), std::to_string(layer.num_kv_heads),
                     layer.head_dim_k == layer.head_dim_v ? std::to_string(layer.head_dim_k)
                                                          : std::to_string(layer.head_dim_k) + "/" +
                                                                std::to_string(layer.head_dim_v),
                     key_transform_text(layer), value_transform_text(layer),
                     figure("%.3f", spectrum_spread(layer.k_spectrum, layer.num_kv_heads)),
                     figure("%.3f", spectrum_spread(layer.v_spectrum, layer.num_kv_heads)),
                     figure("%.3f", mean_clip(layer.k_clip, key_quant(artefact, layer).bits)),
                     figure("%.3f", mean_clip(layer.v_clip, value_quant(artefact, layer).bits)),
                     figure("%.4f", static_cast<double>(layer.k_error)),
                     figure("%.4f", static_cast<double>(layer.v_error))});
  }
  print_table(table);
  std::printf(
      "spread: share of channels that carry the spectrum, (Σλ)²/(d·Σλ²); clip: quantile of a "
      "row's magnitudes; error: squared error of logits and outputs, relative\n");
}

}  // namespace

void print_layers(const Artefact& artefact) {
  print_layers_alone(artefact);
  if (!artefact.layers.front().k_losses.empty()) print_bit_losses(artefact);
}

void print_artefact(const Artefact& artefact) {
  const ModelFingerprint& model = artefact.model;
  const auto line = [](const std::string& name, const std::string& value) {
    std::printf("%s: %s\n", one_line(name, 60).c_str(), one_line(value, 200).c_str());
  };
  line("method", method_name(artefact.method));
  const bool own_bits = artefact.layers.front().k_bits != 0;
  line("keys", quant_text(artefact.k_quant) + (own_bits ? "; bits by layer, see below" : ""));
  line("values", quant_text(artefact.v_quant) + (own_bits ? "; bits by layer, see below" : ""));
  line("model", format("%s, %d layers, %d query heads, %d KV heads, head size %d/%d",
                       one_line(model.architecture, 60).c_str(), model.num_layers,
                       model.num_q_heads, model.num_kv_heads, model.head_dim_k, model.head_dim_v));
  line("weights hash", model.weights_hash.empty() ? "not recorded" : model.weights_hash);
  for (const auto& [key, value] : artefact.info) line(key, value);
  print_layers(artefact);
}

Json artefact_json(const Artefact& artefact) {
  const auto quant_json = [](const QuantSpec& quant) {
    return Json{{"bits", quant.bits},
                {"group_size", quant.group_size},
                {"codebook", codebook_name(quant.codebook)},
                {"text", quant_text(quant)}};
  };
  const ModelFingerprint& model = artefact.model;
  Json json;
  json["version"] = OSCAR_VERSION;
  json["method"] = method_name(artefact.method);
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
         {"k_basis", key_transform_text(layer)},
         {"v_basis", value_transform_text(layer)},
         {"num_kv_heads", layer.num_kv_heads},
         {"head_dim_k", layer.head_dim_k},
         {"head_dim_v", layer.head_dim_v},
         {"k_spread", number_or_null(spectrum_spread(layer.k_spectrum, layer.num_kv_heads))},
         {"v_spread", number_or_null(spectrum_spread(layer.v_spectrum, layer.num_kv_heads))},
         {"k_clip", mean_clip(layer.k_clip, key_quant(artefact, layer).bits)},
         {"v_clip", mean_clip(layer.v_clip, value_quant(artefact, layer).bits)},
         {"k_error", layer.k_error},
         {"v_error", layer.v_error},
         {"k_bits", key_quant(artefact, layer).bits},
         {"v_bits", value_quant(artefact, layer).bits},
         {"k_losses", layer.k_losses},
         {"v_losses", layer.v_losses},
         {"key_mean", !layer.k_mean.empty()},
         {"value_mean", !layer.v_mean.empty()}});
  }
  return json;
}

}  // namespace oscar::tool

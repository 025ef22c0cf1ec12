#include "calibrate/bit_budget.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/error.h"
#include "methods/definition.h"

namespace oscar::calibrate {
namespace {

constexpr int kFewestBits = 2, kMostBits = 4;
static_assert(clip_index(kFewestBits) == 0 && clip_index(kMostBits) == kNumClipBits - 1);

// Stored bits are compared with the budget after a sum of many layers: 2.25 must buy 2.25.
constexpr double kRounding = 1e-9;

void set_all_bits(int bits, Artefact* artefact) {
  for (ArtefactLayer& layer : artefact->layers) layer.k_bits = layer.v_bits = bits;
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

// One side of a layer, and the bits that it could have instead.
struct Upgrade {
  int* bits = nullptr;
  int to = 0;
  double gain = -1;  // of loss, for one stored byte
};

double loss_at(const std::vector<float>& losses, int bits) {
  return static_cast<double>(losses[static_cast<std::size_t>(clip_index(bits))]);
}

}  // namespace

double stored_bits(const Artefact& artefact) {
  double bytes = 0, values = 0;
  for (const ArtefactLayer& layer : artefact.layers) {
    const methods::SideBytes sides = methods::bytes_per_token(artefact, layer);
    bytes += sides.keys + sides.values;
    values += static_cast<double>(layer.num_kv_heads) * (layer.head_dim_k + layer.head_dim_v);
  }
  return 8.0 * bytes / values;
}

void check_budget(double budget, const Artefact& artefact) {
  const methods::Definition& definition = methods::definition(artefact.method);
  if (!definition.packed() || !definition.has_recipe()) {
    throw Error(ErrorCode::kInvalidArgument, std::string("--bits: ") +
                                                 method_name(artefact.method) +
                                                 " has the same bits in every layer");
  }
  Artefact fewest = artefact;
  set_all_bits(kFewestBits, &fewest);
  const double least = stored_bits(fewest);
  if (budget + kRounding >= least) return;
  throw Error(ErrorCode::kInvalidArgument, "--bits " + number_text(budget) + ": " +
                                               method_name(artefact.method) + " stores at least " +
                                               number_text(least) +
                                               " bits a value of this model, scales "
                                               "included");
}

void scale_losses(const std::vector<LayerSensitivity>& sensitivities, Artefact* artefact) {
  for (std::size_t i = 0; i < artefact->layers.size(); ++i) {
    ArtefactLayer& layer = artefact->layers[i];
    const auto scale = [](double measured, std::vector<float>* losses) {
      const auto fewest = static_cast<double>(losses->front());
      float before = static_cast<float>(measured);
      for (float& loss : *losses) {
        // More bits never cost accuracy, whatever a sample says.
        before = std::min(
            before,
            fewest > 0 ? static_cast<float>(measured * static_cast<double>(loss) / fewest) : 0.0f);
        loss = before;
      }
    };
    scale(sensitivities[i].keys, &layer.k_losses);
    scale(sensitivities[i].values, &layer.v_losses);
  }
}

void assign_bits(double budget, Artefact* artefact) {
  check_budget(budget, *artefact);
  set_all_bits(kFewestBits, artefact);
  for (;;) {
    Upgrade best;
    const double before = stored_bits(*artefact);
    for (ArtefactLayer& layer : artefact->layers) {
      for (const auto& [bits, losses] :
           {std::pair{&layer.k_bits, &layer.k_losses}, std::pair{&layer.v_bits, &layer.v_losses}}) {
        const int now = *bits;
        for (int to = now + 1; to <= kMostBits; ++to) {
          *bits = to;
          const double after = stored_bits(*artefact);
          *bits = now;
          const double gain = (loss_at(*losses, now) - loss_at(*losses, to)) / (after - before);
          if (after > budget + kRounding || gain <= best.gain) continue;
          best = {bits, to, gain};
        }
      }
    }
    if (best.bits == nullptr) return;
    *best.bits = best.to;
  }
}

double predicted_loss(const Artefact& artefact) {
  double loss = 0;
  for (const ArtefactLayer& layer : artefact.layers) {
    loss += loss_at(layer.k_losses, key_quant(artefact, layer).bits) +
            loss_at(layer.v_losses, value_quant(artefact, layer).bits);
  }
  return loss;
}

}  // namespace oscar::calibrate

// A --kv specification's options, applied to a copy of an artefact in memory.
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "calibrate/bit_budget.h"
#include "calibrate/group_size.h"
#include "calibrate/methods.h"
#include "calibrate/transform_edits.h"
#include "methods/definition.h"

namespace oscar::calibrate {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, what);
}

void set_bits(int bits, const char* side, QuantSpec* quant) {
  if (bits != 2 && bits != 3 && bits != 4 && bits != 16) {
    refuse(std::string(side) + " bits " + std::to_string(bits) + "; legal: 2, 3, 4, 16");
  }
  quant->bits = bits;
}

// Bits by layer, from the losses that calibration measured.
void spend_budget(double budget, Artefact* artefact) {
  if (artefact->layers.empty() || artefact->layers.front().k_losses.empty()) {
    refuse(
        "bits: there are no losses of layers to spend by; take an artefact of calibrate --bits, or "
        "give bits as k3v2");
  }
  assign_bits(budget, artefact);
}

// The same bits in every layer, as asked for.
void drop_layer_bits(Artefact* artefact) {
  for (ArtefactLayer& layer : artefact->layers) layer.k_bits = layer.v_bits = 0;
}

void set_group(int group_size, Artefact* artefact) {
  const methods::Definition& definition = methods::definition(artefact->method);
  if (!definition.takes_group) {
    refuse("group=" + std::to_string(group_size) + ": " + method_name(artefact->method) +
           " has one norm for a row; leave the option out");
  }
  if (!definition.token_groups.empty()) {
    // Tokens for the keys; as many channels at most for the values, where the method says so.
    artefact->k_quant.group_size = group_size;
    if (definition.values_follow_group) artefact->v_quant.group_size = group_size;
    return;
  }
  for (const ArtefactLayer& layer : artefact->layers) {
    for (const int head_dim : {layer.head_dim_k, layer.head_dim_v}) {
      if (group_size >= kGroupMultiple && group_size % kGroupMultiple == 0 &&
          head_dim % group_size == 0) {
        continue;
      }
      refuse("group=" + std::to_string(group_size) + " does not fit head size " +
             std::to_string(head_dim) + " of layer " + std::to_string(layer.layer) +
             "; legal: multiples of " + std::to_string(kGroupMultiple) + " that divide it");
    }
  }
  artefact->k_quant.group_size = artefact->v_quant.group_size = group_size;
}

// Defaults name the group size that was wished for; a layer with smaller heads has smaller groups.
void clamp_groups(Artefact* artefact) {
  if (!methods::definition(artefact->method).packed()) return;
  std::vector<int> k_dims, v_dims;
  for (const ArtefactLayer& layer : artefact->layers) {
    k_dims.push_back(layer.head_dim_k);
    v_dims.push_back(layer.head_dim_v);
  }
  artefact->k_quant.group_size = common_group_size(k_dims, artefact->k_quant.group_size);
  artefact->v_quant.group_size = common_group_size(v_dims, artefact->v_quant.group_size);
}

void drop_clip(Artefact* artefact) {
  bool any = false;
  for (ArtefactLayer& layer : artefact->layers) {
    for (int index = 0; index < kNumClipBits; ++index) {
      any = any || !layer.k_clip[index].empty() || !layer.v_clip[index].empty();
      layer.k_clip[index].clear();
      layer.v_clip[index].clear();
    }
  }
  if (!any) {
    refuse(std::string("no-clip: ") + method_name(artefact->method) +
           " clips nothing; leave the option out");
  }
}

void drop_means(Artefact* artefact) {
  bool any = false;
  for (ArtefactLayer& layer : artefact->layers) {
    any = any || !layer.k_mean.empty() || !layer.v_mean.empty();
    layer.k_mean.clear();
    layer.v_mean.clear();
    layer.rope = -1;
  }
  if (!any) {
    refuse(std::string("no-mean: ") + method_name(artefact->method) +
           " subtracts no mean; leave the option out");
  }
}

// Clips were fitted for four levels: rows of trellis codes are not clipped, unless their own fit
// says so.
void use_trellis(Artefact* artefact) {
  const methods::Definition& definition = methods::definition(artefact->method);
  const std::string name = method_name(artefact->method);
  if (!definition.packed()) {
    refuse("trellis: " + name + " has a layout of its own; leave the option out");
  }
  if (artefact->k_quant.codebook == Codebook::kAffine ||
      artefact->v_quant.codebook == Codebook::kAffine) {
    refuse("trellis: " + name +
           " stores zero points, and trellis codes have none; use oscar-plus or an artefact of it");
  }
  if (artefact->k_quant.bits == 16 && artefact->v_quant.bits == 16) {
    refuse("trellis: keys and values at 16 bits have no codes; leave the option out or use k2, v2");
  }
  for (ArtefactLayer& layer : artefact->layers) {
    if (artefact->k_quant.codebook != Codebook::kTrellis) layer.k_clip[clip_index(2)].clear();
    if (artefact->v_quant.codebook != Codebook::kTrellis) layer.v_clip[clip_index(2)].clear();
  }
  artefact->k_quant.codebook = artefact->v_quant.codebook = Codebook::kTrellis;
}

void check_trellis(const Artefact& artefact) {
  const auto check = [](const char* side, const QuantSpec& quant, const std::string& where) {
    if (quant.codebook != Codebook::kTrellis || quant.bits == 2 || quant.bits == 16) return;
    refuse("trellis: " + where + side + " have " + std::to_string(quant.bits) +
           " bits, and trellis codes have 2; use k2v2, or leave trellis out");
  };
  check("keys", artefact.k_quant, "");
  check("values", artefact.v_quant, "");
  for (const ArtefactLayer& layer : artefact.layers) {
    const std::string where = "layer " + std::to_string(layer.layer) + "'s ";
    check("keys", key_quant(artefact, layer), where);
    check("values", value_quant(artefact, layer), where);
  }
}

void use_unbiased(Artefact* artefact) {
  const std::string name = method_name(artefact->method);
  if (!methods::definition(artefact->method).packed()) {
    refuse("unbiased: " + name + " has a scale rule of its own; leave the option out");
  }
  if (artefact->k_quant.bits == 16) {
    refuse("unbiased: keys at 16 bits have no scale; leave the option out or use k2, k3, k4");
  }
  if (artefact->k_quant.scale_fit == ScaleFit::kUnbiased) {
    refuse("unbiased: the key scale of " + name + " is unbiased already; leave the option out");
  }
  artefact->k_quant.scale_fit = ScaleFit::kUnbiased;
}

// Exact keys and values have no codes that an option could shape.
void check_exact(const KvSpec& spec, const Artefact& artefact) {
  if (artefact.k_quant.bits != 16 || artefact.v_quant.bits != 16) return;
  const auto check = [](bool given, const char* option) {
    if (!given) return;
    refuse(std::string(option) +
           ": keys and values at 16 bits are exact, it would change nothing; leave it out");
  };
  check(spec.no_eigenbasis, "no-u");
  check(spec.no_permutation, "no-p");
  check(spec.no_hadamard, "no-hadamard");
  check(spec.no_clip, "no-clip");
  check(spec.no_mean, "no-mean");
  check(spec.group_size.has_value(), "group");
}

// Attention on codes is in integers where the method's layout has them: elsewhere the option would
// change nothing.
void check_float(const Artefact& artefact) {
  const std::string name = method_name(artefact.method);
  if (!methods::definition(artefact.method).packed()) {
    refuse("float: attention of " + name + " is in floats already; leave the option out");
  }
  if (artefact.k_quant.bits == 16 && artefact.v_quant.bits == 16) {
    refuse("float: keys and values at 16 bits are in floats already; leave the option out");
  }
}

}  // namespace

void apply_kv_spec(const KvSpec& spec, Artefact* artefact) {
  if (spec.k_bits || spec.v_bits) drop_layer_bits(artefact);
  if (spec.k_bits) set_bits(*spec.k_bits, "key", &artefact->k_quant);
  if (spec.v_bits) set_bits(*spec.v_bits, "value", &artefact->v_quant);
  if (spec.bit_budget) spend_budget(*spec.bit_budget, artefact);
  check_exact(spec, *artefact);
  if (spec.group_size) set_group(*spec.group_size, artefact);
  clamp_groups(artefact);
  if (spec.no_permutation && spec.no_hadamard) {
    refuse("no-p: without the Hadamard there is nothing to order; leave out no-p or no-hadamard");
  }
  if (spec.no_eigenbasis) drop_eigenbasis(artefact);
  if (spec.no_permutation) drop_permutation(artefact);
  if (spec.no_hadamard) drop_hadamard(artefact);
  if (spec.no_clip) drop_clip(artefact);
  if (spec.no_mean) drop_means(artefact);
  if (spec.trellis) use_trellis(artefact);
  check_trellis(*artefact);
  methods::check(artefact->method, *artefact);
  if (spec.unbiased) use_unbiased(artefact);
  if (spec.force_float) check_float(*artefact);
}

}  // namespace oscar::calibrate

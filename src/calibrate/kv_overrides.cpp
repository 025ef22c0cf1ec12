// A --kv specification's options, applied to a copy of an artefact in memory.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "calibrate/group_size.h"
#include "calibrate/methods.h"
#include "format/plane_layout.h"
#include "methods/definition.h"
#include "methods/hadamard.h"

namespace oscar::calibrate {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, what);
}

// matrices [num_heads][head_dim][head_dim] ← matrix · (H·P)ᵀ, summed in double.
void remove_hadamard(int head_dim, std::vector<float>* matrices) {
  const std::vector<double> mix = methods::hadamard_times_p_double(head_dim);
  std::vector<float> row(static_cast<std::size_t>(head_dim));
  for (std::size_t begin = 0; begin < matrices->size(); begin += row.size()) {
    for (int j = 0; j < head_dim; ++j) {
      double sum = 0;
      for (int i = 0; i < head_dim; ++i) {
        sum += static_cast<double>((*matrices)[begin + i]) *
               mix[static_cast<std::size_t>(j) * head_dim + i];
      }
      row[j] = static_cast<float>(sum);
    }
    std::copy(row.begin(), row.end(), matrices->begin() + static_cast<std::ptrdiff_t>(begin));
  }
}

// Each of the matrices [num_heads][head_dim][head_dim] in place.
void transpose(int head_dim, std::vector<float>* matrices) {
  const std::size_t size = static_cast<std::size_t>(head_dim) * head_dim;
  for (std::size_t begin = 0; begin < matrices->size(); begin += size) {
    float* matrix = matrices->data() + begin;
    for (int i = 0; i < head_dim; ++i) {
      for (int j = 0; j < i; ++j) std::swap(matrix[i * head_dim + j], matrix[j * head_dim + i]);
    }
  }
}

void set_bits(int bits, const char* side, QuantSpec* quant) {
  if (bits != 2 && bits != 3 && bits != 4 && bits != 16) {
    refuse(std::string(side) + " bits " + std::to_string(bits) + "; legal: 2, 3, 4, 16");
  }
  quant->bits = bits;
}

void set_group(int group_size, Artefact* artefact) {
  const methods::Definition& definition = methods::definition(artefact->method);
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

void set_identity(int head_dim, std::vector<float>* matrices) {
  for (std::size_t i = 0; i < matrices->size(); ++i) {
    const std::size_t entry = i % (static_cast<std::size_t>(head_dim) * head_dim);
    (*matrices)[i] = entry % (static_cast<std::size_t>(head_dim) + 1) == 0 ? 1.0f : 0.0f;
  }
}

// What a data-free method rotates by is the Hadamard and nothing else.
void reset_transforms(Artefact* artefact) {
  for (ArtefactLayer& layer : artefact->layers) {
    set_identity(layer.head_dim_k, &layer.k_transform);
    set_identity(layer.head_dim_v, &layer.v_transform);
  }
}

void drop_hadamard(Artefact* artefact) {
  if (!artefact->hadamard) {
    refuse(std::string("no-hadamard: the transforms of ") + method_name(artefact->method) +
           " hold no Hadamard; leave the option out");
  }
  artefact->hadamard = false;
  if (!methods::definition(artefact->method).calibrated) return reset_transforms(artefact);
  for (ArtefactLayer& layer : artefact->layers) {
    remove_hadamard(layer.head_dim_k, &layer.k_transform);
    remove_hadamard(layer.head_dim_k, &layer.k_transform_inverse_transposed);
    remove_hadamard(layer.head_dim_v, &layer.v_transform);
    // o = õ·v_inverse: here H·P is the first factor, of the transpose the last.
    transpose(layer.head_dim_v, &layer.v_inverse);
    remove_hadamard(layer.head_dim_v, &layer.v_inverse);
    transpose(layer.head_dim_v, &layer.v_inverse);
  }
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

}  // namespace

void apply_kv_spec(const KvSpec& spec, Artefact* artefact) {
  if (spec.k_bits) set_bits(*spec.k_bits, "key", &artefact->k_quant);
  if (spec.v_bits) set_bits(*spec.v_bits, "value", &artefact->v_quant);
  if (spec.group_size) set_group(*spec.group_size, artefact);
  clamp_groups(artefact);
  if (spec.no_hadamard) drop_hadamard(artefact);
  if (spec.no_clip) drop_clip(artefact);
  if (spec.no_mean) drop_means(artefact);
  methods::check(artefact->method, *artefact);
  if (spec.unbiased) {
    if (!methods::definition(artefact->method).packed()) {
      refuse(std::string("unbiased: ") + method_name(artefact->method) +
             " has a scale rule of its own; leave the option out");
    }
    if (artefact->k_quant.bits == 16) {
      refuse("unbiased: keys at 16 bits have no scale; leave the option out or use k2, k3, k4");
    }
    artefact->k_quant.scale_fit = ScaleFit::kUnbiased;
  }
}

}  // namespace oscar::calibrate

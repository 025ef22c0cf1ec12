#include "calibrate/transform_edits.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "methods/definition.h"
#include "methods/hadamard.h"

namespace oscar::calibrate {
namespace {

[[noreturn]] void refuse(const Artefact& artefact, const char* option, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, std::string(option) + ": " +
                                               method_name(artefact.method) + " " + why +
                                               "; leave the option out");
}

std::vector<double> mix_of(const Artefact& artefact, int head_dim) {
  return artefact.bit_reversal ? methods::hadamard_times_p_double(head_dim)
                               : methods::hadamard_double(head_dim);
}

// matrices [num_heads][head_dim][head_dim] ← matrix · mixᵀ, summed in double.
void remove_mix(int head_dim, const std::vector<double>& mix, std::vector<float>* matrices) {
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

// Columns of every matrix in bit-reversed order, which is its own inverse.
void reorder_columns(int head_dim, std::vector<float>* matrices) {
  std::vector<float> row(static_cast<std::size_t>(head_dim));
  for (std::size_t begin = 0; begin < matrices->size(); begin += row.size()) {
    for (int j = 0; j < head_dim; ++j) {
      row[j] = (*matrices)[begin + methods::bit_reversed(j, head_dim)];
    }
    std::copy(row.begin(), row.end(), matrices->begin() + static_cast<std::ptrdiff_t>(begin));
  }
}

void set_identity(int head_dim, std::vector<float>* matrices) {
  for (std::size_t i = 0; i < matrices->size(); ++i) {
    const std::size_t entry = i % (static_cast<std::size_t>(head_dim) * head_dim);
    (*matrices)[i] = entry % (static_cast<std::size_t>(head_dim) + 1) == 0 ? 1.0f : 0.0f;
  }
}

// Puts the mix where an orthogonal transform is something else; whether there was such a one.
bool set_mix(const std::vector<double>& mix, std::vector<float>* matrices) {
  constexpr float kTolerance = 1e-5f;  // of an entry; those of the mix are at least 1/16
  bool differed = false;
  for (std::size_t i = 0; i < matrices->size(); ++i) {
    const auto entry = static_cast<float>(mix[i % mix.size()]);
    differed = differed || std::abs((*matrices)[i] - entry) > kTolerance;
    (*matrices)[i] = entry;
  }
  return differed;
}

}  // namespace

void drop_eigenbasis(Artefact* artefact) {
  if (!methods::definition(artefact->method).has_recipe()) {
    refuse(*artefact, "no-u", "is rotated by no eigenbasis");
  }
  if (!artefact->hadamard) refuse(*artefact, "no-u", "would be left without any rotation");
  bool any = false;
  for (ArtefactLayer& layer : artefact->layers) {
    // Smoothed keys have an inverse: diag(1/s)·H·P, no U in it.
    if (layer.k_transform_inverse_transposed.empty()) {
      any |= set_mix(mix_of(*artefact, layer.head_dim_k), &layer.k_transform);
    }
    if (layer.v_inverse.empty()) {
      any |= set_mix(mix_of(*artefact, layer.head_dim_v), &layer.v_transform);
    }
  }
  if (!any) refuse(*artefact, "no-u", "has no eigenbasis in any layer's transforms");
}

void drop_permutation(Artefact* artefact) {
  if (methods::definition(artefact->method).k_rotation != methods::hadamard_times_p ||
      !artefact->hadamard || !artefact->bit_reversal) {
    refuse(*artefact, "no-p", "orders no channels by bit reversal");
  }
  for (const ArtefactLayer& layer : artefact->layers) {
    for (const int head_dim : {layer.head_dim_k, layer.head_dim_v}) {
      if (std::has_single_bit(static_cast<unsigned>(head_dim))) continue;
      refuse(*artefact, "no-p",
             "orders no channels at head size " + std::to_string(head_dim) +
                 ", which is no power of two");
    }
  }
  artefact->bit_reversal = false;
  for (ArtefactLayer& layer : artefact->layers) {
    reorder_columns(layer.head_dim_k, &layer.k_transform);
    reorder_columns(layer.head_dim_k, &layer.k_transform_inverse_transposed);
    reorder_columns(layer.head_dim_v, &layer.v_transform);
    // o = õ·v_inverse: here P is the first factor.
    transpose(layer.head_dim_v, &layer.v_inverse);
    reorder_columns(layer.head_dim_v, &layer.v_inverse);
    transpose(layer.head_dim_v, &layer.v_inverse);
  }
}

void drop_hadamard(Artefact* artefact) {
  if (!artefact->hadamard) {
    throw Error(ErrorCode::kInvalidArgument, std::string("no-hadamard: the transforms of ") +
                                                 method_name(artefact->method) +
                                                 " hold no Hadamard; leave the option out");
  }
  artefact->hadamard = false;
  const bool calibrated = methods::definition(artefact->method).calibrated;
  for (ArtefactLayer& layer : artefact->layers) {
    // What a data-free method rotates by is the Hadamard and nothing else.
    if (!calibrated) {
      set_identity(layer.head_dim_k, &layer.k_transform);
      set_identity(layer.head_dim_v, &layer.v_transform);
      continue;
    }
    const std::vector<double> k_mix = mix_of(*artefact, layer.head_dim_k);
    const std::vector<double> v_mix = mix_of(*artefact, layer.head_dim_v);
    remove_mix(layer.head_dim_k, k_mix, &layer.k_transform);
    remove_mix(layer.head_dim_k, k_mix, &layer.k_transform_inverse_transposed);
    remove_mix(layer.head_dim_v, v_mix, &layer.v_transform);
    // o = õ·v_inverse: here H·P is the first factor, of the transpose the last.
    transpose(layer.head_dim_v, &layer.v_inverse);
    remove_mix(layer.head_dim_v, v_mix, &layer.v_inverse);
    transpose(layer.head_dim_v, &layer.v_inverse);
  }
}

}  // namespace oscar::calibrate

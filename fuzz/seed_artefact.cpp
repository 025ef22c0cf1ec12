#include "seed_artefact.h"

#include <vector>

namespace {

constexpr int kDim = 32, kHeads = 2;

std::vector<float> shifts() {
  std::vector<float> matrices(kHeads * kDim * kDim);
  for (int head = 0; head < kHeads; ++head) {
    for (int i = 0; i < kDim; ++i) matrices[(head * kDim + i) * kDim + (i + head + 1) % kDim] = 1;
  }
  return matrices;
}

std::vector<float> transposed(const std::vector<float>& matrices) {
  std::vector<float> out(matrices.size());
  for (int at = 0; at < kHeads * kDim * kDim; ++at) {
    const int head = at / (kDim * kDim), i = at / kDim % kDim, j = at % kDim;
    out[(head * kDim + j) * kDim + i] = matrices[at];
  }
  return out;
}

}  // namespace

oscar::Artefact seed_artefact(bool with_options) {
  oscar::Artefact out;
  out.method = with_options ? oscar::Method::kOscarPlus : oscar::Method::kNaive;
  out.model = {"llama", 1, 2 * kHeads, kHeads, kDim, kDim, ""};
  oscar::ArtefactLayer layer;
  layer.num_kv_heads = kHeads;
  layer.head_dim_k = layer.head_dim_v = kDim;
  layer.k_transform = layer.v_transform = shifts();
  if (with_options) {
    out.ropes = {{oscar::RopePairing::kInterleaved, std::vector<float>(kDim / 2, 0.5f), 1.0f}};
    out.info = {{"tokens", "8192"}};
    layer.rope = 0;
    layer.k_transform_inverse_transposed = layer.k_transform;
    layer.v_inverse = transposed(layer.v_transform);
    layer.k_mean = layer.v_mean = std::vector<float>(kHeads * kDim, 0.25f);
    for (int bits = 0; bits < oscar::kNumClipBits; ++bits) {
      layer.k_clip[bits] = layer.v_clip[bits] = std::vector<float>(kHeads, 0.5f);
    }
    layer.k_spectrum = layer.v_spectrum = std::vector<float>(kHeads * kDim, 2.0f);
  }
  out.layers = {layer};
  return out;
}

#include "cache/test_artefact.h"

#include <bit>
#include <cmath>
#include <numeric>

namespace oscar::cache::test {
namespace {

std::vector<float> hadamard(int dim) {
  std::vector<float> m(std::size_t(dim) * dim);
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  for (int i = 0; i < dim; ++i) {
    for (int j = 0; j < dim; ++j)
      m[i * dim + j] = std::popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? scale : -scale;
  }
  return m;
}

// R with the two other forms that go with it: R⁻ᵀ and R⁻¹, empty where R is orthogonal.
struct Matrices {
  std::vector<float> transform, inverse_transposed, inverse;
};

Matrices make_matrices(Transform kind, int dim, Generator* generator) {
  switch (kind) {
    case Transform::kIdentity: return {};
    case Transform::kHadamard: return {hadamard(dim), {}, {}};
    case Transform::kCyclicShift: return {cyclic_shift(dim), {}, {}};
    case Transform::kRandomOrthogonal: return {random_orthogonal(dim, generator), {}, {}};
    case Transform::kNonOrthogonal: break;
  }
  // diag(s)·R, diag(1/s)·R, Rᵀ·diag(1/s).
  std::uniform_real_distribution<float> factor(0.5f, 2.0f);
  Matrices m{random_orthogonal(dim, generator), {}, {}};
  m.inverse_transposed = m.inverse = m.transform;
  for (int i = 0; i < dim; ++i) {
    const float s = factor(*generator);
    for (int j = 0; j < dim; ++j) {
      m.inverse[j * dim + i] = m.inverse_transposed[i * dim + j] = m.transform[i * dim + j] / s;
    }
    for (int j = 0; j < dim; ++j) m.transform[i * dim + j] *= s;
  }
  return m;
}

void append(std::vector<float>* all, const std::vector<float>& part) {
  all->insert(all->end(), part.begin(), part.end());
}

RopeSpec make_rope_spec(const LayerSpec& spec) {
  RopeSpec rope;
  rope.pairing =
      spec.mean == Mean::kInterleaved ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
  const bool partial = spec.mean == Mean::kPartialRotation;
  const int num_pairs = partial ? spec.head_dim_k / 4 : spec.head_dim_k / 2;
  for (int f = 0; f < num_pairs; ++f) {
    rope.inv_freq.push_back(
        std::pow(10000.0f, -static_cast<float>(f) / static_cast<float>(num_pairs)));
  }
  rope.magnitude = partial ? 1.1f : 1.0f;
  return rope;
}

ArtefactLayer make_layer(const LayerSpec& spec, Generator* generator) {
  ArtefactLayer layer;
  layer.num_kv_heads = spec.num_kv_heads;
  layer.head_dim_k = spec.head_dim_k;
  layer.head_dim_v = spec.head_dim_v;
  for (int head = 0; head < spec.num_kv_heads; ++head) {
    const Matrices k = make_matrices(spec.transform, spec.head_dim_k, generator);
    const Matrices v = make_matrices(spec.transform, spec.head_dim_v, generator);
    append(&layer.k_transform, k.transform);
    append(&layer.k_transform_inverse_transposed, k.inverse_transposed);
    append(&layer.v_transform, v.transform);
    append(&layer.v_inverse, v.inverse);
  }
  if (spec.mean != Mean::kNone) {
    layer.k_mean = gaussian(std::int64_t{spec.num_kv_heads} * spec.head_dim_k, 1.5f, generator);
    layer.v_mean = gaussian(std::int64_t{spec.num_kv_heads} * spec.head_dim_v, 0.5f, generator);
  }
  if (spec.mean != Mean::kNone && spec.mean != Mean::kStatic) layer.rope = 0;
  for (int bits = 2; bits <= 4; ++bits) {
    layer.k_clip[clip_index(bits)].assign(spec.num_kv_heads, spec.k_clip);
    layer.v_clip[clip_index(bits)].assign(spec.num_kv_heads, spec.v_clip);
  }
  return layer;
}

}  // namespace

std::vector<float> gaussian(std::int64_t count, float deviation, Generator* generator) {
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(*generator);
  return values;
}

// Gram-Schmidt on Gaussian rows, twice, in double.
std::vector<float> random_orthogonal(int dim, Generator* generator) {
  std::normal_distribution<double> normal;
  std::vector<double> m(std::size_t(dim) * dim);
  for (double& value : m) value = normal(*generator);
  for (int i = 0; i < dim; ++i) {
    double* const row = m.data() + i * dim;
    for (int pass = 0; pass < 2; ++pass) {
      for (int j = 0; j < i; ++j) {
        const double dot = std::inner_product(row, row + dim, m.data() + j * dim, 0.0);
        for (int d = 0; d < dim; ++d) row[d] -= dot * m[j * dim + d];
      }
    }
    const double norm = std::sqrt(std::inner_product(row, row + dim, row, 0.0));
    for (int d = 0; d < dim; ++d) row[d] /= norm;
  }
  std::vector<float> result;
  for (const double value : m) result.push_back(static_cast<float>(value));
  return result;
}

std::vector<float> cyclic_shift(int dim) {
  std::vector<float> m(std::size_t(dim) * dim);
  for (int i = 0; i < dim; ++i) m[i * dim + (i + 1) % dim] = 1.0f;
  return m;
}

Artefact make_artefact(const LayerSpec& spec, int num_layers) {
  Generator generator(spec.seed);
  Artefact artefact;
  artefact.k_quant = spec.k_quant;
  artefact.v_quant = spec.v_quant;
  if (spec.mean != Mean::kNone && spec.mean != Mean::kStatic)
    artefact.ropes.push_back(make_rope_spec(spec));
  for (int layer = 0; layer < num_layers; ++layer) {
    artefact.layers.push_back(make_layer(spec, &generator));
    artefact.layers.back().layer = layer;
  }
  return artefact;
}

std::shared_ptr<const RopeTable> make_rope(const Artefact& artefact, std::int32_t max_position) {
  if (artefact.ropes.empty()) return nullptr;
  return std::make_shared<RopeTable>(artefact.ropes.front(), max_position);
}

LayerCodec make_codec(const LayerSpec& spec, std::int32_t max_position,
                      const kernels::KernelSet& kernels) {
  const Artefact artefact = make_artefact(spec, 1);
  return {artefact, artefact.layers.front(), make_rope(artefact, max_position), kernels};
}

}  // namespace oscar::cache::test

// Made-up layers for tests: every kind of transform and of key mean, from a seed.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "cache/layer_codec.h"
#include "format/artefact.h"

namespace oscar::cache::test {

enum class Transform { kIdentity, kHadamard, kCyclicShift, kRandomOrthogonal, kNonOrthogonal };
enum class Mean { kNone, kStatic, kHalfSplit, kInterleaved, kPartialRotation };

struct LayerSpec {
  QuantSpec k_quant = {};
  QuantSpec v_quant = {};
  Transform transform = Transform::kRandomOrthogonal;
  Mean mean = Mean::kHalfSplit;
  int num_kv_heads = 2, head_dim_k = 64, head_dim_v = 64;
  float k_clip = 0.96f, v_clip = 0.92f;
  std::uint64_t seed = 1;
};

using Generator = std::mt19937_64;
std::vector<float> gaussian(std::int64_t count, float deviation, Generator* generator);
std::vector<float> random_orthogonal(int dim, Generator* generator);
std::vector<float> cyclic_shift(int dim);  // channel i becomes channel i + 1

// An artefact of num_layers layers of this kind, each from a seed of its own.
Artefact make_artefact(const LayerSpec& spec, int num_layers);
std::shared_ptr<const RopeTable> make_rope(const Artefact& artefact,
                                           std::int32_t max_position);  // null: none
LayerCodec make_codec(const LayerSpec& spec, std::int32_t max_position,
                      const kernels::KernelSet& kernels);

}  // namespace oscar::cache::test

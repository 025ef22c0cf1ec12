#include "calibrate/layer_fit.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "base/error.h"
#include "calibrate/group_size.h"
#include "calibrate/methods.h"
#include "kernels/kernels.h"
#include "methods/hadamard.h"

namespace oscar::calibrate {
namespace {

constexpr int kClipBits[kNumClipBits] = {2, 3, 4};

std::string head_name(int layer, int kv_head) {
  return "layer " + std::to_string(layer) + ", KV head " + std::to_string(kv_head);
}

void append(const MatrixF& matrix, std::vector<float>* all) {
  all->insert(all->end(), matrix.data(), matrix.data() + matrix.size());
}

void append(const VectorF& vector, std::vector<float>* all) {
  all->insert(all->end(), vector.data(), vector.data() + vector.size());
}

void check_sums(const std::string& name, const char* what, const std::vector<double>& sums,
                std::int64_t count, std::int64_t size) {
  if (count < 1) {
    throw Error(ErrorCode::kCorrupt,
                name + ": no rows for " + what + "; calibrate on a text that reaches this layer");
  }
  if (static_cast<std::int64_t>(sums.size()) != size) {
    throw Error(ErrorCode::kCorrupt, name + ": " + what + " holds " + std::to_string(sums.size()) +
                                         " numbers; its head size needs " + std::to_string(size));
  }
  for (const double sum : sums) {
    if (std::isfinite(sum)) continue;
    throw Error(ErrorCode::kCorrupt, name + ": " + what + " holds " + std::to_string(sum) +
                                         "; statistics must be finite, calibrate again");
  }
}

// One KV head on the way to the artefact.
struct HeadFit {
  HeadSample sample;
  KeyHead keys;
  ValueHead values;
  std::vector<ClipFit> key_clips, value_clips;  // of each candidate, at the default bits
};

PlaneLayout layout_of(QuantSpec quant, int bits, int head_dim) {
  quant.bits = bits;
  // Other widths of a method with trellis codes are what they are without.
  if (quant.codebook == Codebook::kTrellis && bits != 2) quant.codebook = Codebook::kSymmetric;
  const PlaneLayout layout{head_dim, quant};
  layout.validate();
  return layout;
}

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0.0; }

// Scores come from a sample: a candidate has to be this much better than the recipe's first one.
constexpr double kMargin = 0.95;

// The value mean has to pay clearly: tokens that soak up attention have values near 0, and less the
// mean they are large, so their errors are too (docs/adr/0007-value-side.md).
constexpr double kMeanMargin = 0.8;

std::size_t choose(const std::vector<double>& scores) {
  const auto lowest = std::min_element(scores.begin(), scores.end());
  return *lowest < kMargin * scores.front() ? static_cast<std::size_t>(lowest - scores.begin()) : 0;
}

// U·H·P becomes H·P, once.
template <typename Basis>
void replace_rotated(Basis rotated, Basis plain, std::vector<Basis>* candidates) {
  std::replace(candidates->begin(), candidates->end(), rotated, plain);
  std::vector<Basis> distinct;
  for (const Basis basis : *candidates) {
    if (std::find(distinct.begin(), distinct.end(), basis) == distinct.end())
      distinct.push_back(basis);
  }
  *candidates = std::move(distinct);
}

void check_permuted(int head_dim) {
  if (std::has_single_bit(static_cast<unsigned>(head_dim))) return;
  throw Error(ErrorCode::kInvalidArgument,
              "no-p: head size " + std::to_string(head_dim) +
                  " is no power of two, and its channels are not in bit-reversed order");
}

}  // namespace

Recipe recipe_for(Method method, const FitVariant& variant, const std::vector<int>& k_dims,
                  const std::vector<int>& v_dims) {
  Recipe recipe;
  const methods::Definition& definition = methods::definition(method);
  if (!definition.calibrated) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("method ") + method_name(method) +
                    " is not calibrated; legal: " + calibrated_method_names());
  }
  static_cast<methods::Recipe&>(recipe) = definition.recipe;
  recipe.method = method;
  const DefaultQuants quants = default_quants(method, k_dims, v_dims);
  recipe.k_quant = quants.k;
  recipe.v_quant = quants.v;
  check_fit_variant(variant, method);
  recipe.variant = variant;
  if (variant.no_eigenbasis) {
    replace_rotated(KeyBasis::kRotated, KeyBasis::kHadamard, &recipe.key_candidates);
    replace_rotated(ValueBasis::kRotated, ValueBasis::kHadamard, &recipe.value_candidates);
  }
  if (variant.no_permutation) {
    for (const std::vector<int>* dims : {&k_dims, &v_dims}) {
      for (const int head_dim : *dims) check_permuted(head_dim);
    }
  }
  return recipe;
}

std::vector<double> Recipe::mix(int head_dim) const {
  return variant.no_permutation ? methods::hadamard_double(head_dim)
                                : methods::hadamard_times_p_double(head_dim);
}

DefaultQuants default_quants(Method method, const std::vector<int>& k_dims,
                             const std::vector<int>& v_dims) {
  const methods::Definition& definition = methods::definition(method);
  DefaultQuants quants{definition.k, definition.v};
  if (definition.packed()) {
    quants.k.group_size = common_group_size(k_dims, quants.k.group_size);
    quants.v.group_size = common_group_size(v_dims, quants.v.group_size);
  }
  return quants;
}

void check_statistics(const LayerInput& input) {
  const LayerStatistics& stats = *input.stats;
  const LayerShape& shape = stats.shape;
  const std::string layer = "layer " + std::to_string(input.layer);
  if (shape.num_kv_heads < 1 || shape.num_q_heads < 1 || shape.head_dim_k < 1 ||
      shape.head_dim_v < 1 || shape.num_q_heads % shape.num_kv_heads != 0 ||
      static_cast<int>(stats.heads.size()) != shape.num_kv_heads) {
    throw Error(ErrorCode::kCorrupt,
                layer + ": its statistics are not complete (" + std::to_string(shape.num_q_heads) +
                    " query heads, " + std::to_string(shape.num_kv_heads) +
                    " KV heads, head sizes " + std::to_string(shape.head_dim_k) + " and " +
                    std::to_string(shape.head_dim_v) +
                    "); keys, values and attention of every layer are needed");
  }
  if (input.rope != nullptr && input.rope->spec().rotated_dims() > shape.head_dim_k) {
    throw Error(ErrorCode::kCorrupt,
                layer + ": RoPE rotates " + std::to_string(input.rope->spec().rotated_dims()) +
                    " channels; head size " + std::to_string(shape.head_dim_k) + " has fewer");
  }
  const std::int64_t k_dim = shape.head_dim_k, v_dim = shape.head_dim_v;
  for (int kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
    const HeadStatistics& head = stats.heads[kv_head];
    const std::string name = head_name(input.layer, kv_head);
    check_sums(name, "C_Q", head.query_covariance, head.num_queries, k_dim * k_dim);
    check_sums(name, "C_S", head.output_covariance, head.num_queries, v_dim * v_dim);
    check_sums(name, "the key mean", head.key_mean_sum, head.num_tokens, k_dim);
    check_sums(name, "the key power", head.key_square_sum, head.num_tokens, k_dim);
    check_sums(name, "the value mean", head.value_mean_sum, head.num_values, v_dim);
  }
}

LayerFit fit_layer(const LayerInput& input, const Recipe& recipe) {
  const LayerStatistics& stats = *input.stats;
  const LayerShape& shape = stats.shape;
  const SampleGeometry geometry = sample_geometry(input.layer, stats);
  TrialCodec codec(kernels::selected_kernel_set());
  const auto k_layout = [&](int bits) { return layout_of(recipe.k_quant, bits, shape.head_dim_k); };
  const auto v_layout = [&](int bits) { return layout_of(recipe.v_quant, bits, shape.head_dim_v); };

  const RotationTargets targets = rotation_targets(stats, recipe.variant);
  const std::vector<double> k_mix = recipe.mix(shape.head_dim_k);
  const std::vector<double> v_mix = recipe.mix(shape.head_dim_v);

  LayerFit fit;
  fit.windowed = geometry.windowed;
  fit.key_scores.resize(recipe.key_candidates.size());
  fit.value_scores.resize(recipe.value_candidates.size());
  std::vector<HeadFit> heads(static_cast<std::size_t>(shape.num_kv_heads));
  double k_energy = 0, v_energy = 0, output_square = 0;
  for (int kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
    HeadFit& head = heads[kv_head];
    const std::string name = head_name(input.layer, kv_head);
    head.sample = head_sample(stats, geometry, kv_head);
    head.keys = key_head(stats, geometry, head.sample, kv_head, targets,
                         {.rope = input.rope,
                          .subtract_mean = recipe.subtract_key_mean,
                          .shared_smoothing = recipe.variant.per_layer,
                          .name = name});
    head.values = value_head(stats, geometry, head.sample, kv_head, targets, false, name);
    for (std::size_t i = 0; i < recipe.key_candidates.size(); ++i) {
      const KeyTransform transform = key_transform(recipe.key_candidates[i], head.keys, k_mix);
      const PlaneLayout layout = k_layout(recipe.k_quant.bits);
      head.key_clips.push_back(fit_key_clip(head.keys, transform, layout, &codec));
      fit.key_scores[i] += attention_divergence(head.keys, transform, head.key_clips.back().ratio,
                                                layout, head.sample, geometry, &codec) /
                           shape.num_kv_heads;
    }
    for (std::size_t i = 0; i < recipe.value_candidates.size(); ++i) {
      const MatrixF transform = value_transform(recipe.value_candidates[i], head.values, v_mix);
      head.value_clips.push_back(
          fit_value_clip(head.values, transform, v_layout(recipe.v_quant.bits), &codec));
      fit.value_scores[i] += head.value_clips.back().error;
    }
    k_energy += key_energy(head.keys);
    v_energy += value_energy(head.values);
    output_square += output_energy(head.sample, geometry);
  }
  for (double& score : fit.value_scores) score = ratio(score, v_energy);
  fit.key_choice = choose(fit.key_scores);
  fit.value_choice = choose(fit.value_scores);

  ArtefactLayer& layer = fit.layer;
  layer.layer = input.layer;
  layer.num_kv_heads = shape.num_kv_heads;
  layer.head_dim_k = shape.head_dim_k;
  layer.head_dim_v = shape.head_dim_v;
  layer.rope = stats.rope;
  const KeyBasis key_basis = recipe.key_candidates[fit.key_choice];
  const ValueBasis value_basis = recipe.value_candidates[fit.value_choice];
  const auto output_error_of = [&](const HeadFit& head) {
    return output_error(head.values, value_transform(value_basis, head.values, v_mix),
                        head.value_clips[fit.value_choice].ratio, v_layout(recipe.v_quant.bits),
                        head.sample, geometry, &codec);
  };
  double k_error = 0, output_error_sum = 0;
  for (const HeadFit& head : heads) output_error_sum += output_error_of(head);
  if (recipe.offer_value_mean) {
    std::vector<HeadFit> centred = heads;
    double centred_error = 0;
    for (int kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
      HeadFit& head = centred[kv_head];
      head.values =
          value_head(stats, geometry, head.sample, kv_head, targets, true, head.values.name);
      head.value_clips[fit.value_choice] =
          fit_value_clip(head.values, value_transform(value_basis, head.values, v_mix),
                         v_layout(recipe.v_quant.bits), &codec);
      centred_error += output_error_of(head);
    }
    fit.value_mean = centred_error < kMeanMargin * output_error_sum;
    if (fit.value_mean) {
      heads = std::move(centred);
      output_error_sum = centred_error;
    }
  }
  for (const HeadFit& head : heads) {
    const KeyTransform key = key_transform(key_basis, head.keys, k_mix);
    const MatrixF value = value_transform(value_basis, head.values, v_mix);
    const ClipFit& key_clip = head.key_clips[fit.key_choice];
    const ClipFit& value_clip = head.value_clips[fit.value_choice];
    append(key.key, &layer.k_transform);
    if (key_basis == KeyBasis::kSmoothed) append(key.query, &layer.k_transform_inverse_transposed);
    append(value, &layer.v_transform);
    append(head.keys.basis.values.cast<float>().eval(), &layer.k_spectrum);
    append(head.values.basis.values.cast<float>().eval(), &layer.v_spectrum);
    if (recipe.subtract_key_mean) append(head.keys.mean, &layer.k_mean);
    if (fit.value_mean) append(head.values.mean, &layer.v_mean);
    for (const int bits : kClipBits) {
      const bool known_k = bits == recipe.k_quant.bits, known_v = bits == recipe.v_quant.bits;
      layer.k_clip[clip_index(bits)].push_back(
          known_k ? key_clip.ratio : fit_key_clip(head.keys, key, k_layout(bits), &codec).ratio);
      layer.v_clip[clip_index(bits)].push_back(
          known_v ? value_clip.ratio
                  : fit_value_clip(head.values, value, v_layout(bits), &codec).ratio);
    }
    k_error += key_clip.error;
    if (!recipe.with_losses) continue;
    layer.k_losses.resize(kNumClipBits);
    layer.v_losses.resize(kNumClipBits);
    for (const int bits : kClipBits) {
      const auto index = static_cast<std::size_t>(clip_index(bits));
      const double divergence = attention_divergence(head.keys, key, layer.k_clip[index].back(),
                                                     k_layout(bits), head.sample, geometry, &codec);
      const double error = output_error(head.values, value, layer.v_clip[index].back(),
                                        v_layout(bits), head.sample, geometry, &codec);
      // A sample's variance can come out below 0 where there is next to none.
      layer.k_losses[index] += static_cast<float>(std::max(0.0, divergence) / shape.num_kv_heads);
      layer.v_losses[index] += static_cast<float>(ratio(error, output_square));
    }
  }
  layer.k_error = static_cast<float>(ratio(k_error, k_energy));
  layer.v_error = static_cast<float>(ratio(output_error_sum, output_square));
  return fit;
}

}  // namespace oscar::calibrate

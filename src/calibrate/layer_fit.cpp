#include "calibrate/layer_fit.h"

#include <cmath>
#include <string>

#include "base/error.h"
#include "calibrate/group_size.h"
#include "kernels/kernels.h"

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

// What both passes over a layer start from.
struct LayerWork {
  LayerWork(const LayerInput& layer_input, const Recipe& layer_recipe)
      : input(layer_input),
        recipe(layer_recipe),
        geometry(sample_geometry(input.layer, *input.stats)),
        codec(kernels::selected_kernel_set()) {}

  KeyHead keys(const HeadSample& sample, int kv_head) const {
    return key_head(*input.stats, geometry, sample, kv_head, input.rope, recipe.subtract_means,
                    head_name(input.layer, kv_head));
  }
  ValueHead values(const HeadSample& sample, int kv_head) const {
    return value_head(*input.stats, geometry, sample, kv_head, recipe.subtract_means,
                      head_name(input.layer, kv_head));
  }
  PlaneLayout k_layout(int bits) const {
    return layout(recipe.k_quant, bits, input.stats->shape.head_dim_k);
  }
  PlaneLayout v_layout(int bits) const {
    return layout(recipe.v_quant, bits, input.stats->shape.head_dim_v);
  }

  const LayerInput& input;
  const Recipe& recipe;
  SampleGeometry geometry;
  TrialCodec codec;

 private:
  static PlaneLayout layout(QuantSpec quant, int bits, int head_dim) {
    quant.bits = bits;
    const PlaneLayout result{head_dim, quant};
    result.validate();
    return result;
  }
};

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0.0; }

}  // namespace

Recipe recipe_for(Method method, const std::vector<int>& k_dims, const std::vector<int>& v_dims) {
  Recipe recipe;
  recipe.method = method;
  recipe.k_quant.group_size = common_group_size(k_dims, kDefaultGroupSize);
  recipe.v_quant.group_size = common_group_size(v_dims, kDefaultGroupSize);
  switch (method) {
    case Method::kOscar:
      recipe.key_candidates = {KeyBasis::kRotated};
      recipe.value_candidates = {ValueBasis::kRotated};
      return recipe;
    case Method::kOscarPlus:
      recipe.key_candidates = {KeyBasis::kRotated, KeyBasis::kHadamard, KeyBasis::kSmoothed};
      recipe.value_candidates = {ValueBasis::kRotated, ValueBasis::kHadamard};
      recipe.subtract_means = true;
      recipe.k_quant.codebook = recipe.v_quant.codebook = Codebook::kSymmetric;
      recipe.k_quant.scale_fit = ScaleFit::kUnbiased;
      recipe.v_quant.scale_fit = ScaleFit::kLeastSquares;
      return recipe;
    default:
      throw Error(ErrorCode::kInvalidArgument, std::string("method ") + method_name(method) +
                                                   " is not calibrated; legal: oscar, oscar-plus");
  }
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

LayerScores score_layer(const LayerInput& input, const Recipe& recipe) {
  LayerWork work(input, recipe);
  const PlaneLayout k_layout = work.k_layout(recipe.k_quant.bits);
  const PlaneLayout v_layout = work.v_layout(recipe.v_quant.bits);
  LayerScores scores;
  scores.keys.resize(recipe.key_candidates.size());
  scores.values.resize(recipe.value_candidates.size());
  scores.windowed = work.geometry.windowed;
  const int num_kv_heads = input.stats->shape.num_kv_heads;
  double energy = 0;
  for (int kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
    const HeadSample sample = head_sample(*input.stats, work.geometry, kv_head);
    const KeyHead keys = work.keys(sample, kv_head);
    for (std::size_t i = 0; i < recipe.key_candidates.size(); ++i) {
      const KeyTransform transform = key_transform(recipe.key_candidates[i], keys);
      const ClipFit clip = fit_key_clip(keys, transform, k_layout, &work.codec);
      scores.keys[i] += attention_divergence(keys, transform, clip.ratio, k_layout, sample,
                                             work.geometry, &work.codec) /
                        num_kv_heads;
    }
    const ValueHead values = work.values(sample, kv_head);
    for (std::size_t i = 0; i < recipe.value_candidates.size(); ++i) {
      const MatrixF transform = value_transform(recipe.value_candidates[i], values);
      const ClipFit clip = fit_value_clip(values, transform, v_layout, &work.codec);
      scores.values[i] +=
          output_error(values, transform, clip.ratio, v_layout, sample, work.geometry, &work.codec);
    }
    energy += output_energy(sample, work.geometry);
  }
  for (double& score : scores.values) score = ratio(score, energy);
  return scores;
}

ArtefactLayer fit_layer(const LayerInput& input, const Recipe& recipe, KeyBasis key_basis,
                        ValueBasis value_basis) {
  LayerWork work(input, recipe);
  const LayerStatistics& stats = *input.stats;
  ArtefactLayer fitted;
  fitted.layer = input.layer;
  fitted.num_kv_heads = stats.shape.num_kv_heads;
  fitted.head_dim_k = stats.shape.head_dim_k;
  fitted.head_dim_v = stats.shape.head_dim_v;
  fitted.rope = stats.rope;
  double k_error = 0, k_energy = 0, v_error = 0, v_energy = 0;
  for (int kv_head = 0; kv_head < stats.shape.num_kv_heads; ++kv_head) {
    const HeadSample sample = head_sample(stats, work.geometry, kv_head);
    const KeyHead keys = work.keys(sample, kv_head);
    const KeyTransform key = key_transform(key_basis, keys);
    const ValueHead values = work.values(sample, kv_head);
    const MatrixF value = value_transform(value_basis, values);
    append(key.key, &fitted.k_transform);
    if (key_basis == KeyBasis::kSmoothed) append(key.query, &fitted.k_transform_inverse_transposed);
    append(value, &fitted.v_transform);
    append(keys.basis.values.cast<float>().eval(), &fitted.k_spectrum);
    append(values.basis.values.cast<float>().eval(), &fitted.v_spectrum);
    if (recipe.subtract_means) {
      append(keys.mean, &fitted.k_mean);
      append(values.mean, &fitted.v_mean);
    }
    for (const int bits : kClipBits) {
      const ClipFit k_clip = fit_key_clip(keys, key, work.k_layout(bits), &work.codec);
      const ClipFit v_clip = fit_value_clip(values, value, work.v_layout(bits), &work.codec);
      fitted.k_clip[clip_index(bits)].push_back(k_clip.ratio);
      fitted.v_clip[clip_index(bits)].push_back(v_clip.ratio);
      if (bits == recipe.k_quant.bits) k_error += k_clip.error;
      if (bits == recipe.v_quant.bits) {
        v_error += output_error(values, value, v_clip.ratio, work.v_layout(bits), sample,
                                work.geometry, &work.codec);
      }
    }
    k_energy += key_energy(keys);
    v_energy += output_energy(sample, work.geometry);
  }
  fitted.k_error = static_cast<float>(ratio(k_error, k_energy));
  fitted.v_error = static_cast<float>(ratio(v_error, v_energy));
  return fitted;
}

}  // namespace oscar::calibrate

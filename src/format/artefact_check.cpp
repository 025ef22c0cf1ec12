#include "format/artefact_check.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/f16.h"
#include "base/text.h"
#include "format/artefact_fields.h"
#include "format/dtype.h"
#include "format/plane_layout.h"

namespace oscar {
namespace {

class Checker {
 public:
  Checker(const Artefact& artefact, const std::string& name) : artefact_(artefact), name_(name) {}

  void check_model() const {
    const ModelFingerprint& model = artefact_.model;
    in_range("num_layers", model.num_layers, kMaxLayers);
    in_range("num_q_heads", model.num_q_heads, kMaxHeads);
    in_range("num_kv_heads", model.num_kv_heads, kMaxHeads);
    if (model.num_q_heads % model.num_kv_heads != 0) {
      fail("num_q_heads " + std::to_string(model.num_q_heads) +
           " is not a multiple of num_kv_heads " + std::to_string(model.num_kv_heads));
    }
    check_quant("k_quant", model.head_dim_k, artefact_.k_quant);
    check_quant("v_quant", model.head_dim_v, artefact_.v_quant);
  }

  void check_ropes() const {
    for (std::size_t r = 0; r < artefact_.ropes.size(); ++r) {
      const RopeSpec& rope = artefact_.ropes[r];
      if (!(std::isfinite(rope.magnitude) && rope.magnitude > 0)) {
        fail("rope " + std::to_string(r) + " has magnitude " + number_text(rope.magnitude) +
             "; right: finite and above 0");
      }
      for (std::size_t f = 0; f < rope.inv_freq.size(); ++f) {
        const float value = rope.inv_freq[f];
        if (!(std::isfinite(value) && value >= 0)) {
          fail("tensor " + in_quotes(rope_tensor_name(r)) + " has " + number_text(value) +
               " for pair " + std::to_string(f) + "; right: finite and not negative");
        }
      }
    }
  }

  void check_layers() const {
    const ModelFingerprint& model = artefact_.model;
    if (artefact_.layers.size() != static_cast<std::size_t>(model.num_layers)) {
      fail("it has " + std::to_string(artefact_.layers.size()) + " layers, its model " +
           std::to_string(model.num_layers));
    }
    int previous = -1;
    for (const ArtefactLayer& layer : artefact_.layers) {
      if (layer.layer <= previous || layer.layer >= kMaxLayers) {
        fail("layer " + std::to_string(layer.layer) + " follows layer " + std::to_string(previous) +
             "; right: ascending, each once, below " + std::to_string(kMaxLayers));
      }
      previous = layer.layer;
      check_layer(layer);
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::kCorrupt, in_quotes(name_) + ": " + what);
  }

  [[noreturn]] void fail(const ArtefactLayer& layer, const std::string& what) const {
    fail("layer " + std::to_string(layer.layer) + what);
  }

  void in_range(const char* field, int value, int max) const {
    if (value < 1 || value > max) {
      fail(std::string(field) + " is " + std::to_string(value) + "; right: 1 to " +
           std::to_string(max));
    }
  }

  // The group is fitted to the head size by whoever uses the artefact, so it is judged alone.
  void check_quant(const char* side, int head_dim, const QuantSpec& quant) const {
    if (quant.group_size < kGroupMultiple || quant.group_size > kMaxHeadDim ||
        quant.group_size % kGroupMultiple != 0) {
      fail(std::string(side) + " has group_size " + std::to_string(quant.group_size) +
           "; right: a multiple of " + std::to_string(kGroupMultiple) + ", at most " +
           std::to_string(kMaxHeadDim));
    }
    try {
      PlaneLayout{head_dim, {quant.bits, head_dim, quant.codebook, quant.scale_fit}}.validate();
    } catch (const Error& error) {
      throw Error(ErrorCode::kUnsupported, in_quotes(name_) + ": " + side + ": " + error.what());
    }
  }

  void check_layer(const ArtefactLayer& layer) const {
    const ModelFingerprint& model = artefact_.model;
    same(layer, "num_kv_heads", layer.num_kv_heads, model.num_kv_heads);
    same(layer, "head_dim_k", layer.head_dim_k, model.head_dim_k);
    same(layer, "head_dim_v", layer.head_dim_v, model.head_dim_v);
    const int num_ropes = static_cast<int>(artefact_.ropes.size());
    if (layer.rope < -1 || layer.rope >= num_ropes) {
      fail(layer, " uses rope " + std::to_string(layer.rope) + "; right: -1 (none) to " +
                      std::to_string(num_ropes - 1));
    }
    if (layer.rope >= 0 && artefact_.ropes[layer.rope].rotated_dims() > layer.head_dim_k) {
      fail(layer, " uses rope " + std::to_string(layer.rope) + " of " +
                      std::to_string(artefact_.ropes[layer.rope].rotated_dims()) +
                      " channels; right: at most its head size " +
                      std::to_string(layer.head_dim_k));
    }
    visit_layer_fields(layer, [&](const LayerField& field, const std::vector<float>& values) {
      check_size_and_finite(layer, field, values);
    });
    check_inverse(layer, "k_transform", layer.head_dim_k, layer.k_transform,
                  transposed(layer.k_transform_inverse_transposed.empty()
                                 ? layer.k_transform
                                 : layer.k_transform_inverse_transposed,
                             layer.head_dim_k),
                  layer.k_transform_inverse_transposed.empty());
    check_inverse(
        layer, "v_transform", layer.head_dim_v, layer.v_transform,
        layer.v_inverse.empty() ? transposed(layer.v_transform, layer.head_dim_v) : layer.v_inverse,
        layer.v_inverse.empty());
    for (int i = 0; i < kNumClipBits; ++i) {
      check_clip(layer, "k_clip", i, layer.k_clip[i]);
      check_clip(layer, "v_clip", i, layer.v_clip[i]);
    }
    check_spectrum(layer, "k_spectrum", layer.head_dim_k, layer.k_spectrum);
    check_spectrum(layer, "v_spectrum", layer.head_dim_v, layer.v_spectrum);
    check_bits(layer);
    for (const float error : {layer.k_error, layer.v_error}) {
      if (!(std::isfinite(error) && error >= 0)) {
        fail(layer, " has error " + number_text(error) + "; right: finite and not negative");
      }
    }
  }

  // Bits of the layer's own and losses: both sides or neither, and all layers as the first.
  void check_bits(const ArtefactLayer& layer) const {
    const ArtefactLayer& first = artefact_.layers.front();
    const bool own = layer.k_bits != 0;
    if ((layer.v_bits != 0) != own || (first.k_bits != 0) != own) {
      fail(layer, " has bits " + std::to_string(layer.k_bits) + " and " +
                      std::to_string(layer.v_bits) + ", layer " + std::to_string(first.layer) +
                      " has " + std::to_string(first.k_bits) + " and " +
                      std::to_string(first.v_bits) +
                      "; right: bits of its own for both sides of every layer, or for none (0)");
    }
    const std::string name = "layer " + std::to_string(layer.layer);
    check_quant((name + " keys").c_str(), layer.head_dim_k, key_quant(artefact_, layer));
    check_quant((name + " values").c_str(), layer.head_dim_v, value_quant(artefact_, layer));
    for (const std::vector<float>* losses : {&layer.k_losses, &layer.v_losses}) {
      if (losses->size() != first.k_losses.size() ||
          (!losses->empty() && losses->size() != kNumClipBits)) {
        fail(layer, " has " + std::to_string(losses->size()) + " losses by bits; right: " +
                        std::to_string(kNumClipBits) + " for both sides of every layer, or none");
      }
      for (const float loss : *losses) {
        if (std::isfinite(loss) && loss >= 0) continue;
        fail(layer, " has loss " + number_text(loss) + "; right: finite and not negative");
      }
    }
  }

  void same(const ArtefactLayer& layer, const char* field, int have, int want) const {
    if (have != want) {
      fail(layer, std::string(" has ") + field + " " + std::to_string(have) + ", its model has " +
                      std::to_string(want));
    }
  }

  void check_size_and_finite(const ArtefactLayer& layer, const LayerField& field,
                             const std::vector<float>& values) const {
    if (values.empty() && !field.required) return;
    const std::uint64_t per_head = field.values_per_head();
    const std::uint64_t right = per_head * static_cast<std::uint64_t>(layer.num_kv_heads);
    if (values.size() != right) {
      fail(layer, ": " + field.name + " has " + std::to_string(values.size()) +
                      " values; right: " + std::to_string(right) + " for " +
                      shape_text(field.shape(layer.num_kv_heads)));
    }
    // A mean is of rows that were read from, or would be kept in, half precision.
    const bool is_mean = field.name == "k_mean" || field.name == "v_mean";
    const auto bad = std::find_if_not(values.begin(), values.end(), [&](float value) {
      return std::isfinite(value) && (!is_mean || std::abs(value) <= kLargestF16);
    });
    if (bad == values.end()) return;
    const auto index = static_cast<std::uint64_t>(bad - values.begin());
    fail(layer, " head " + std::to_string(index / per_head) + ": " + field.name + " has " +
                    number_text(*bad) + " at its value " + std::to_string(index % per_head) +
                    (is_mean ? "; right: finite, at most 65504 as halves are"
                             : "; right: finite numbers"));
  }

  static std::vector<float> transposed(const std::vector<float>& matrices, int dim) {
    std::vector<float> out(matrices.size());
    const std::size_t size = static_cast<std::size_t>(dim) * dim;
    for (std::size_t base = 0; base < matrices.size(); base += size) {
      for (int i = 0; i < dim; ++i) {
        for (int j = 0; j < dim; ++j) {
          out[base + std::size_t(j) * dim + i] = matrices[base + std::size_t(i) * dim + j];
        }
      }
    }
    return out;
  }

  // R·inverse = I for every head. Single precision suffices: its error, head_dim·2^-24 < 2e-5, is
  // far below the limit. The limit tells a rotation rounded to BF16 (0.002 at most) from two equal
  // columns (√2/head_dim at least, 0.0055 at 256).
  void check_inverse(const ArtefactLayer& layer, const char* field, int dim,
                     const std::vector<float>& matrices, const std::vector<float>& inverses,
                     bool orthogonal) const {
    std::vector<float> row(dim);
    for (int head = 0; head < layer.num_kv_heads; ++head) {
      const float* matrix = matrices.data() + std::int64_t{head} * dim * dim;
      const float* inverse = inverses.data() + std::int64_t{head} * dim * dim;
      for (int i = 0; i < dim; ++i) {
        std::fill(row.begin(), row.end(), 0.0f);
        row[i] = -1;
        for (int k = 0; k < dim; ++k) {
          const float factor = matrix[std::int64_t{i} * dim + k];
          const float* from = inverse + std::int64_t{k} * dim;
          float* to = row.data();
          for (int j = 0; j < dim; ++j) to[j] += factor * from[j];
        }
        for (int j = 0; j < dim; ++j) {
          if (std::abs(row[j]) <= kMaxOrthogonalityError) continue;
          fail(layer, " head " + std::to_string(head) + ": " + field +
                          (orthogonal ? " is not orthogonal: R*R^T - I is "
                                      : " does not fit its inverse: R*inverse - I is ") +
                          number_text(row[j]) + " at row " + std::to_string(i) + ", column " +
                          std::to_string(j) + "; right: at most " +
                          number_text(kMaxOrthogonalityError));
        }
      }
    }
  }

  void check_clip(const ArtefactLayer& layer, const char* field, int index,
                  const std::vector<float>& ratios) const {
    for (std::size_t head = 0; head < ratios.size(); ++head) {
      if (ratios[head] > 0 && ratios[head] <= 1) continue;
      fail(layer, " head " + std::to_string(head) + ": " + field + "." +
                      std::to_string(index - clip_index(0)) + " is " + number_text(ratios[head]) +
                      "; right: above 0, at most 1");
    }
  }

  void check_spectrum(const ArtefactLayer& layer, const char* field, int dim,
                      const std::vector<float>& values) const {
    for (std::size_t i = 1; i < values.size(); ++i) {
      if (i % dim == 0 || values[i] <= values[i - 1]) continue;
      fail(layer, " head " + std::to_string(i / dim) + ": " + field + " rises from " +
                      number_text(values[i - 1]) + " to " + number_text(values[i]) +
                      " at its value " + std::to_string(i % dim) + "; right: descending");
    }
  }

  const Artefact& artefact_;
  const std::string& name_;
};

}  // namespace

void check_artefact_model(const Artefact& artefact, const std::string& name) {
  Checker(artefact, name).check_model();
}

void check_artefact(const Artefact& artefact, const std::string& name) {
  const Checker checker(artefact, name);
  checker.check_model();
  checker.check_ropes();
  checker.check_layers();
}

}  // namespace oscar

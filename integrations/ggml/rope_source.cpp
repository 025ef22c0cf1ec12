#include "rope_source.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace oscar::ggml_plugin {
namespace {

constexpr int kMaxSteps = 16;  // from the cache's write to the ROPE node; models take two or three
constexpr int kMultiplePositions = GGML_ROPE_TYPE_MROPE;  // the bit that M-RoPE and its kin share
constexpr double kSameFrequency = 1e-5;

// op_params of ROPE, after ggml's ggml_rope_ext.
struct RopeParams {
  int num_dims, mode, original_context;
  float base, scale, extrapolation, attention, beta_fast, beta_slow;
};

RopeParams params_of(const ggml_tensor* node) {
  const auto integer = [node](int i) { return node->op_params[i]; };
  const auto real = [node](int i) {
    float value;
    std::memcpy(&value, &node->op_params[i], sizeof value);
    return value;
  };
  return {integer(1), integer(2), integer(4), real(5), real(6),
          real(7),    real(8),    real(9),    real(10)};
}

bool only_moves(const ggml_tensor* t) {
  switch (t->op) {
    case GGML_OP_VIEW:
    case GGML_OP_RESHAPE:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
    case GGML_OP_CONT:
    case GGML_OP_CPY:
    case GGML_OP_DUP: return true;
    default: return false;
  }
}

// One factor for a whole row, which a rotation commutes with.
bool only_scales_rows(const ggml_tensor* t) {
  return t->op == GGML_OP_SCALE || t->op == GGML_OP_RMS_NORM || t->op == GGML_OP_L2_NORM;
}

}  // namespace

RopeSource find_rope(const ggml_tensor* rows) {
  RopeSource source;
  bool disturbed = false;
  const ggml_tensor* t = rows;
  for (int step = 0; t != nullptr && step < kMaxSteps; ++step) {
    if (t->op == GGML_OP_ROPE) {
      source.node = t;
      if ((t->op_params[2] & kMultiplePositions) != 0) {
        source.note = "several positions a token (M-RoPE)";
      } else if (disturbed) {
        source.note = "the rotated keys are changed before they are stored";
      } else {
        source.rotation_known = true;
      }
      return source;
    }
    if (!only_moves(t) && !only_scales_rows(t)) disturbed = true;
    t = t->src[0] != nullptr ? t->src[0] : t->view_src;
  }
  source.note = "no rotation (ROPE) is computed for its keys";
  return source;
}

const ggml_tensor* rope_positions(const RopeSource& source) {
  if (source.node == nullptr || (source.node->op_params[2] & kMultiplePositions) != 0)
    return nullptr;
  const ggml_tensor* positions = source.node->src[1];
  return positions != nullptr && positions->type == GGML_TYPE_I32 ? positions : nullptr;
}

RopeSpec rope_spec_of(const ggml_tensor* rope_node) {
  const RopeParams p = params_of(rope_node);
  RopeSpec spec;
  spec.pairing =
      (p.mode & GGML_ROPE_TYPE_NEOX) != 0 ? RopePairing::kHalfSplit : RopePairing::kInterleaved;
  const ggml_tensor* factor_tensor = rope_node->src[2];
  const float* factors =
      factor_tensor != nullptr ? static_cast<const float*>(factor_tensor->data) : nullptr;
  float low_high[2] = {0, 0};
  ggml_rope_yarn_corr_dims(p.num_dims, p.original_context, p.base, p.beta_fast, p.beta_slow,
                           low_high);
  for (int f = 0; f < p.num_dims / 2; ++f) {
    const double plain = std::pow(double{p.base}, -2.0 * f / p.num_dims) /
                         (factors != nullptr ? double{factors[f]} : 1.0);
    double mixed = plain * p.scale;
    if (p.extrapolation != 0.0f) {
      // YaRN (2309.00071, section 3.2): fast pairs keep their frequency, slow ones are
      // interpolated.
      const double ramp = 1.0 - std::clamp((f - double{low_high[0]}) /
                                               std::max(0.001, double{low_high[1]} - low_high[0]),
                                           0.0, 1.0);
      const double share = ramp * p.extrapolation;
      mixed = mixed * (1.0 - share) + plain * share;
    }
    spec.inv_freq.push_back(static_cast<float>(mixed));
  }
  spec.magnitude = p.attention;
  if (p.extrapolation != 0.0f) spec.magnitude *= 1.0f + 0.1f * std::log(1.0f / p.scale);
  return spec;
}

std::optional<std::string> rope_difference(const RopeSpec& model, const RopeSpec& artefact) {
  const auto pairing = [](const RopeSpec& spec) {
    return spec.pairing == RopePairing::kHalfSplit ? "half-split" : "interleaved";
  };
  const auto differ = [](double a, double b) {
    return std::abs(a - b) > kSameFrequency * std::max(std::abs(a), std::abs(b));
  };
  if (model.pairing != artefact.pairing) {
    return std::string("RoPE pairs are ") + pairing(model) + ", in the artefact " +
           pairing(artefact);
  }
  if (model.num_pairs() != artefact.num_pairs()) {
    return "RoPE rotates " + std::to_string(model.rotated_dims()) + " channels, in the artefact " +
           std::to_string(artefact.rotated_dims());
  }
  for (int f = 0; f < model.num_pairs(); ++f) {
    if (differ(model.inv_freq[f], artefact.inv_freq[f])) {
      return "RoPE frequency " + std::to_string(f) + " is " + std::to_string(model.inv_freq[f]) +
             ", in the artefact " + std::to_string(artefact.inv_freq[f]);
    }
  }
  if (differ(model.magnitude, artefact.magnitude)) {
    return "RoPE magnitude is " + std::to_string(model.magnitude) + ", in the artefact " +
           std::to_string(artefact.magnitude);
  }
  return std::nullopt;
}

}  // namespace oscar::ggml_plugin

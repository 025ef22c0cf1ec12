// Every kernel set attends as fp64 does, within what single precision may lose, whatever the shape,
// the values and what unwritten slots hold. Where a term is not finite, or a sum may overflow, any
// result is right, but only there: other tokens, channels and rows keep their bounds.
#include <cmath>
#include <limits>

#include "kernel_case.h"

namespace oscar::kernels {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();
// Σ q·code and Σ q are taken first, a group's scale comes last; so they bound what may overflow.
Bound logit_bound(const Matrix& q, int row, const DecodedRow& key, int group_size) {
  Bound bound;
  double scale = 0, dot = 0, plain = 0;
  const auto close_group = [&] {
    if (!(dot < kLarge) || !(plain < kLarge)) bound.sum = std::nan("");
    bound.floor += 2 * kTiny;
    dot = plain = 0;
  };
  for (std::size_t c = 0; c < key.codes.size(); ++c) {
    if (c > 0 && c % static_cast<std::size_t>(group_size) == 0) close_group();
    const double x = q.at(row, static_cast<int>(c));
    scale = key.scales[c];
    bound.sum += scale * x * (key.codes[c] - key.zeros[c]);
    const double magnitude = std::abs(x) * (std::abs(key.codes[c]) + std::abs(key.zeros[c]));
    bound.magnitude += std::abs(scale) * magnitude;
    bound.floor += 2 * std::abs(scale) * kTiny;
    dot += magnitude;
    plain += std::abs(x);
  }
  close_group();
  return bound;
}

void check_qk_codes(Source& source) {
  const PlaneLayout layout = any_layout(source, true);
  const std::vector<std::uint8_t> plane = any_plane(source, layout);
  const int rows = source.between(1, 16), tokens = source.between(1, kPageSize);
  const Matrix q = any_matrix(rows, layout.head_dim, source, true);
  const Matrix before(rows, tokens, source);
  std::vector<DecodedRow> keys;
  for (int t = 0; t < tokens; ++t) keys.push_back(decode_row(layout, plane, t));
  for (const KernelSet* set : sets_scalar_first()) {
    const std::string what = name_of(*set, "qk_codes", layout, rows, tokens);
    Matrix logits = before;
    set->qk_codes({q.data(), plane.data(), logits.data(), rows, tokens, q.stride, logits.stride,
                   layout, source.one_in(2) ? plane.data() : nullptr});
    logits.require_gaps(what);
    for (int r = 0; r < rows; ++r) {
      for (int t = 0; t < tokens; ++t) {
        // Products and sums of a group, its zero point, its scale; then the groups.
        logit_bound(q, r, keys[static_cast<std::size_t>(t)], layout.quant.group_size)
            .require(logits.at(r, t), layout.head_dim + 8, what);
      }
    }
  }
}

void check_pv_codes(Source& source) {
  const PlaneLayout layout = any_layout(source, true);
  const std::vector<std::uint8_t> plane = any_plane(source, layout);
  const int rows = source.between(1, 16), tokens = source.between(1, kPageSize);
  const Matrix p = any_weights(rows, tokens, source);
  const Matrix before = any_matrix(rows, layout.head_dim, source, true);
  std::vector<DecodedRow> page;
  for (int t = 0; t < tokens; ++t) page.push_back(decode_row(layout, plane, t));
  for (const KernelSet* set : sets_scalar_first()) {
    const std::string what = name_of(*set, "pv_codes", layout, rows, tokens);
    Matrix out = before;
    set->pv_codes({p.data(), plane.data(), out.data(), rows, tokens, p.stride, out.stride, layout,
                   source.one_in(2) ? plane.data() : nullptr});
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < layout.head_dim; ++c) {
        Bound bound{before.at(r, c), std::abs(double{before.at(r, c)}), 4 * kTiny};
        for (int t = 0; t < tokens; ++t) {
          if (p.at(r, t) == 0) continue;  // contributes nothing, whatever it holds
          const DecodedRow& value = page[static_cast<std::size_t>(t)];
          const auto channel = static_cast<std::size_t>(c);
          const double weight = p.at(r, t) * value.scales[channel];
          const double size = std::abs(value.codes[channel]) + std::abs(value.zeros[channel]);
          bound.sum += weight * (value.codes[channel] - value.zeros[channel]);
          bound.magnitude += std::abs(weight) * (size + 1);
          bound.floor += (size + 2) * kTiny;
        }
        // The zero points' sum is taken first and is the start of the other: each token twice.
        bound.require(out.at(r, c), 2 * tokens + 8, what);
      }
    }
  }
}

void check_dot_tile(Source& source) {
  const int dim = 16 * source.between(2, 16), rows = source.between(1, 31),
            tokens = source.between(1, kPageSize);
  const Matrix q = any_matrix(rows, dim, source, source.one_in(2));
  const Matrix k = any_matrix(tokens, dim, source, source.one_in(2));
  Matrix before(rows, tokens, source);
  const bool accumulate = source.one_in(2);
  for (const KernelSet* set : sets_scalar_first()) {
    const std::string what = std::string(set->name) + " dot_tile head_dim " + std::to_string(dim);
    Matrix logits = before;
    set->dot_tile({q.data(), k.data(), logits.data(), rows, tokens, dim, q.stride, k.stride,
                   logits.stride, accumulate});
    logits.require_gaps(what);
    for (int r = 0; r < rows; ++r) {
      for (int t = 0; t < tokens; ++t) {
        Bound bound;
        if (accumulate) bound = {before.at(r, t), std::abs(double{before.at(r, t)}), 0};
        for (int c = 0; c < dim; ++c) {
          const double term = double{q.at(r, c)} * k.at(t, c);
          bound.sum += term;
          bound.magnitude += std::abs(term);
          bound.floor += kTiny;
        }
        bound.require(logits.at(r, t), dim + 2, what);
      }
    }
  }
}

void check_accumulate_tile(Source& source) {
  const int dim = 16 * source.between(2, 16), rows = source.between(1, 31),
            tokens = source.between(1, kPageSize);
  const Matrix p = any_weights(rows, tokens, source);
  const Matrix v = any_matrix(tokens, dim, source, source.one_in(2));
  const Matrix before = any_matrix(rows, dim, source, true);
  for (const KernelSet* set : sets_scalar_first()) {
    const std::string what =
        std::string(set->name) + " accumulate_tile head_dim " + std::to_string(dim);
    Matrix out = before;
    set->accumulate_tile(
        {p.data(), v.data(), out.data(), rows, tokens, dim, p.stride, v.stride, out.stride});
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < dim; ++c) {
        Bound bound{before.at(r, c), std::abs(double{before.at(r, c)}), 0};
        bool has_nan = false;
        for (int t = 0; t < tokens; ++t) {
          const double term = double{p.at(r, t)} * v.at(t, c);
          has_nan |= std::isnan(term);
          bound.sum += term;
          bound.magnitude += std::abs(term);
          bound.floor += kTiny;
        }
        bound.require(out.at(r, c), tokens + 1, what);
        if (has_nan && !std::isnan(out.at(r, c))) fail(what + ": a NaN among the values is lost");
      }
    }
  }
}

void check_softmax_tile(Source& source) {
  const int rows = source.between(1, 9), tokens = source.between(1, 2 * kPageSize);
  Matrix before(rows, tokens, source);
  std::vector<float> old_max, old_sum;
  for (int r = 0; r < rows; ++r) {
    const float spread = std::ldexp(1.0f, source.between(-4, 30));
    const bool is_masked = source.one_in(8), is_partly_masked = source.one_in(2);
    for (int t = 0; t < tokens; ++t) {
      const bool is_hidden = is_masked || (is_partly_masked && source.one_in(3));
      before.at(r, t) = is_hidden ? kHidden : source.finite(Source::Temper::kOrdinary) * spread;
    }
    const bool is_first = source.one_in(3);
    old_max.push_back(is_first ? kHidden : source.finite(Source::Temper::kOrdinary) * spread);
    old_sum.push_back(is_first ? 0.0f : static_cast<float>(1 + 1000 * source.uniform()));
  }
  for (const KernelSet* set : sets_scalar_first()) {
    const std::string what =
        std::string(set->name) + " softmax_tile tokens " + std::to_string(tokens);
    Matrix weights = before;
    std::vector<float> max = old_max, sum = old_sum, rescale(static_cast<std::size_t>(rows), 9.0f);
    set->softmax_tile(
        {weights.data(), max.data(), sum.data(), rescale.data(), rows, tokens, weights.stride});
    weights.require_gaps(what);
    for (int r = 0; r < rows; ++r) {
      const auto row = static_cast<std::size_t>(r);
      float new_max = old_max[row];
      for (int t = 0; t < tokens; ++t) new_max = std::max(new_max, before.at(r, t));
      if (max[row] != new_max) fail(what + ": wrong maximum");
      // Differences as single precision takes them: their rounding belongs to the logits. exp is
      // good to 2 ulp, and 0 below e^−64.
      const auto weight_of = [&](float logit) {
        const bool is_empty = new_max == kHidden;
        const double weight = is_empty ? 0 : std::exp(double{static_cast<float>(logit - new_max)});
        return Bound{weight, weight, 2e-28};
      };
      const double kept = new_max == kHidden ? 1 : weight_of(old_max[row]).sum;
      Bound{kept, kept, 2e-28}.require(rescale[row], 4, what + " rescale");
      Bound total{kept * old_sum[row], kept * old_sum[row], 2e-28 * (tokens + old_sum[row])};
      for (int t = 0; t < tokens; ++t) {
        const Bound weight = weight_of(before.at(r, t));
        weight.require(weights.at(r, t), 4, what);
        total.sum += weight.sum;
        total.magnitude += weight.sum;
      }
      total.require(sum[row], tokens + 8, what + " sum");
    }
  }
}

}  // namespace
}  // namespace oscar::kernels

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Source source(data, size);
  switch (source.below(5)) {
    case 0: oscar::kernels::check_qk_codes(source); break;
    case 1: oscar::kernels::check_pv_codes(source); break;
    case 2: oscar::kernels::check_dot_tile(source); break;
    case 3: oscar::kernels::check_accumulate_tile(source); break;
    default: oscar::kernels::check_softmax_tile(source); break;
  }
  return 0;
}

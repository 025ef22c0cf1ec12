// The integer operations give the scalar set's bits in every set, and what they give is what fp64
// gives, within half a step of the rounded rows and weights; so does the mean key's tile, within
// what single precision may lose.
#include <algorithm>
#include <cmath>

#include "kernel_case.h"

namespace oscar::kernels {
namespace {

// Rounded to 16 bits, and the rounding of the steps themselves.
constexpr double kHalfStep = 0.5 + 0x1p-6;
constexpr double kLargestQuery = 32639;
constexpr double kSmallestScaled = 0x1p-100;  // what lies below counts as zero

struct Queries {
  std::vector<std::int8_t> bytes;
  std::vector<float> scales, sums;

  Queries(const KernelSet& set, const Matrix& q, const PlaneLayout& layout)
      : bytes(static_cast<std::size_t>(2 * q.num_rows * q.width)),
        scales(static_cast<std::size_t>(q.num_rows * layout.num_groups())),
        sums(scales.size()) {
    set.quantize_queries(
        {q.data(), q.num_rows, q.stride, layout, bytes.data(), scales.data(), sums.data()});
  }
};

void check_qk(Source& source) {
  const PlaneLayout layout = any_layout(source, false);
  const std::vector<std::uint8_t> plane = any_plane(source, layout);
  const int rows = source.between(1, 24), tokens = source.between(1, kPageSize);
  const Matrix q = any_matrix(rows, layout.head_dim, source, source.one_in(2));
  const Matrix before(rows, tokens, source);
  const Queries scalar_queries(*sets_scalar_first()[0], q, layout);
  std::vector<float> scalar;
  for (const KernelSet* set : sets_scalar_first()) {
    const std::string what = name_of(*set, "qk_integer", layout, rows, tokens);
    const Queries queries(*set, q, layout);
    if (queries.bytes != scalar_queries.bytes) fail(what + ": other bytes of the queries");
    require_same(queries.scales, scalar_queries.scales, what + " scales of the queries");
    require_same(queries.sums, scalar_queries.sums, what + " sums of the queries");
    Matrix logits = before;
    set->qk_integer({queries.bytes.data(), queries.scales.data(), queries.sums.data(), plane.data(),
                     logits.data(), rows, tokens, logits.stride, layout,
                     source.one_in(2) ? plane.data() : nullptr});
    logits.require_gaps(what);
    if (scalar.empty()) scalar = logits.values;
    require_same(logits.values, scalar, what);
  }
  const Matrix logits = [&] {
    Matrix of_scalar = before;
    of_scalar.values = scalar;
    return of_scalar;
  }();
  for (int t = 0; t < tokens; ++t) {
    const DecodedRow key = decode_row(layout, plane, t);
    for (int r = 0; r < rows; ++r) {
      Bound bound;
      const int group_size = layout.quant.group_size;
      for (int first = 0; first < layout.head_dim; first += group_size) {
        double largest = 0;
        for (int c = first; c < first + group_size; ++c) {
          const double x = std::abs(double{q.at(r, c)});
          largest = x > largest || std::isnan(x) ? x : largest;
        }
        if (!std::isfinite(largest)) bound.sum = std::nan("");
        const double step =
            largest < kSmallestScaled ? 2 * kSmallestScaled : largest / kLargestQuery;
        for (int c = first; c < first + group_size; ++c) {
          const auto channel = static_cast<std::size_t>(c);
          const double scale = key.scales[channel], zero = key.zeros[channel];
          const double level = key.codes[channel] - zero;
          bound.sum += scale * q.at(r, c) * level;
          bound.magnitude += std::abs(scale) * largest * (key.codes[channel] + std::abs(zero) + 1);
          bound.floor += kHalfStep * step * std::abs(scale * level) + kTiny;
          // Σ code·zero and the product of the scales come before the difference.
          if (!(std::abs(zero) * kLargestQuery * group_size < kLarge)) bound.sum = std::nan("");
          if (!(std::abs(scale) * largest < kLarge)) bound.sum = std::nan("");
          // The product of the scales may be subnormal.
          bound.floor += kTiny * kLargestQuery * (key.codes[channel] + std::abs(zero));
        }
      }
      bound.require(logits.at(r, t), 8 + layout.num_groups(),
                    name_of(*sets_scalar_first()[0], "qk_integer", layout, rows, tokens));
    }
  }
}

void check_pv(Source& source) {
  const PlaneLayout layout = any_layout(source, false);
  const std::vector<std::uint8_t> plane = any_plane(source, layout);
  const int rows = source.between(1, 24), tokens = source.between(1, kPageSize);
  Matrix p = any_weights(rows, tokens, source);
  std::vector<DecodedRow> page;
  for (int t = 0; t < tokens; ++t) page.push_back(decode_row(layout, plane, t));
  // Tokens that attention weighs have scales of at least 0, and finite metadata.
  for (int t = 0; t < tokens; ++t) {
    const DecodedRow& value = page[static_cast<std::size_t>(t)];
    bool is_written = true;
    for (std::size_t c = 0; c < value.scales.size(); ++c) {
      is_written &=
          value.scales[c] >= 0 && value.scales[c] <= 0x1p120 && std::abs(value.zeros[c]) <= 0x1p100;
    }
    for (int r = 0; r < rows && !is_written; ++r) p.at(r, t) = 0;
  }
  const Matrix before = any_matrix(rows, layout.head_dim, source, true);
  std::vector<float> scalar;
  for (const KernelSet* set : sets_scalar_first()) {
    const std::string what = name_of(*set, "pv_integer", layout, rows, tokens);
    Matrix out = before;
    set->pv_integer({p.data(), plane.data(), out.data(), rows, tokens, p.stride, out.stride, layout,
                     source.one_in(2) ? plane.data() : nullptr});
    if (scalar.empty()) scalar = out.values;
    require_same(out.values, scalar, what);
    if (set != sets_scalar_first()[0]) continue;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < layout.head_dim; ++c) {
        const auto channel = static_cast<std::size_t>(c);
        Bound bound{before.at(r, c), std::abs(double{before.at(r, c)}), 4 * kTiny};
        double largest = 0, distances = 0, zeros = 0;
        for (int t = 0; t < tokens; ++t) {
          const DecodedRow& value = page[static_cast<std::size_t>(t)];
          if (p.at(r, t) == 0) continue;
          const double weight = p.at(r, t) * value.scales[channel];
          const double zero = std::abs(value.zeros[channel]);
          bound.sum += weight * (value.codes[channel] - value.zeros[channel]);
          bound.magnitude += weight * (value.codes[channel] + zero + 1);
          largest = std::max(largest, weight);
          distances += std::abs(value.codes[channel] - value.zeros[channel]);
          zeros += zero;
        }
        const double step = largest < 2 * kSmallestScaled ? 2 * kSmallestScaled : largest / 65535;
        bound.floor += kHalfStep * step * distances + kTiny * (zeros + 1024);
        // The zero points' sum is taken in steps.
        if (!(65535 * zeros < kLarge)) bound.sum = std::nan("");
        bound.magnitude += largest * zeros;  // a weight's own rounding is relative to the largest
        bound.require(out.at(r, c), tokens + 16, what);
      }
    }
  }
}

void check_mean_tile(Source& source) {
  const int num_fast = source.below(65), num_slow = source.below(kMaxHeadDim / 2 - num_fast + 1);
  const int rows = source.between(1, 16), num_pairs = num_fast + num_slow;
  const int num_columns = 2 * num_fast + kMeanPolynomials;
  std::vector<float> pairs = source.tame_rows(rows, kMeanPairFloats, kMeanPairFloats, 20);
  const std::vector<float> constants = source.tame_rows(1, rows, rows, 20);
  std::vector<float> turn(2 * kMeanPairFloats, 0.0f);
  for (int i = 0; i < num_pairs; ++i) {
    const double angle = 6.283 * source.uniform();
    for (const std::size_t half : {0u, 1u}) {
      turn[static_cast<std::size_t>(2 * i) + half] = static_cast<float>(std::cos(angle));
      turn[kMeanPairFloats + static_cast<std::size_t>(2 * i) + half] =
          static_cast<float>((half == 0 ? 1 : -1) * std::sin(angle));
    }
  }
  const std::vector<float> series =
      source.tame_rows(std::max(num_slow, 1), kMeanPolynomials, kMeanPolynomials, 4);
  const std::vector<float> columns = source.tame_rows(num_columns, kPageSize, kPageSize, 4);
  const Matrix before = any_matrix(rows, kPageSize, source, true);

  // Terms of every row: column by column, the value and the magnitudes that it is added up from.
  const auto at = [](const std::vector<float>& values, int row, int width, int column) {
    return double{values[static_cast<std::size_t>(row * width + column)]};
  };
  for (const KernelSet* set : sets_scalar_first()) {
    const std::string what = std::string(set->name) + " mean_tile fast " +
                             std::to_string(num_fast) + " slow " + std::to_string(num_slow);
    Matrix logits = before;
    set->mean_tile({pairs.data(), constants.data(), turn.data(), series.data(), columns.data(),
                    logits.data(), rows, num_fast, num_slow, logits.stride});
    for (int r = 0; r < rows; ++r) {
      std::vector<double> factors(static_cast<std::size_t>(num_columns), 0.0), sizes = factors;
      factors[static_cast<std::size_t>(2 * num_fast)] = constants[static_cast<std::size_t>(r)];
      sizes[static_cast<std::size_t>(2 * num_fast)] =
          std::abs(constants[static_cast<std::size_t>(r)]);
      for (int i = 0; i < 2 * num_pairs; ++i) {
        const double own = at(pairs, r, kMeanPairFloats, i) * at(turn, 0, 0, i);
        const double other = at(pairs, r, kMeanPairFloats, i ^ 1) * at(turn, 1, kMeanPairFloats, i);
        const double size = std::abs(own) + std::abs(other);
        if (i < 2 * num_fast) {
          factors[static_cast<std::size_t>(i)] = own + other;
          sizes[static_cast<std::size_t>(i)] = size;
          continue;
        }
        for (int degree = i % 2; degree < kMeanPolynomials; degree += 2) {
          const auto column = static_cast<std::size_t>(2 * num_fast + degree);
          const double coefficient = at(series, i / 2 - num_fast, kMeanPolynomials, degree);
          factors[column] += (own + other) * coefficient;
          sizes[column] += size * std::abs(coefficient);
        }
      }
      for (int t = 0; t < kPageSize; ++t) {
        Bound bound{before.at(r, t), std::abs(double{before.at(r, t)}), 0};
        for (int column = 0; column < num_columns; ++column) {
          const auto index = static_cast<std::size_t>(column);
          const double factor = at(columns, column, kPageSize, t);
          bound.sum += factors[index] * factor;
          bound.magnitude += sizes[index] * std::abs(factor);
          // Subnormal products at each of the three levels; factors are below 2^4.
          bound.floor += kTiny * (1 + 17 * 17 * (num_slow + 2));
        }
        bound.require(logits.at(r, t), num_columns + num_slow + 6, what);
      }
    }
  }
}

}  // namespace
}  // namespace oscar::kernels

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Source source(data, size);
  switch (source.below(3)) {
    case 0: oscar::kernels::check_qk(source); break;
    case 1: oscar::kernels::check_pv(source); break;
    default: oscar::kernels::check_mean_tile(source); break;
  }
  return 0;
}

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

// What a tile of the key mean is made of: fast pairs, and slow ones in blocks of 1, 2, 4 and 8.
struct MeanCase {
  int num_fast, num_rows, num_pairs, num_slow_blocks = 0;
  int num_blocks[4] = {};
  std::vector<float> pairs, constants, turn, step, series, columns;
  bool advances;

  explicit MeanCase(Source& source)
      : num_fast(source.below(65)),
        num_rows(source.between(1, 16)),
        num_pairs(num_fast),
        pairs(source.tame_rows(num_rows, kMeanPairFloats, kMeanPairFloats, 20)),
        constants(source.tame_rows(1, num_rows, num_rows, 20)),
        advances(source.one_in(2)) {
    for (int level = 3; level >= 0; --level) {
      const int left = kMaxHeadDim / 2 - num_pairs;
      num_blocks[level] = source.below((left >> level) + 1);
      num_pairs += num_blocks[level] << level;
      num_slow_blocks += num_blocks[level];
    }
    turn = turns(source);
    step = turns(source);
    series = source.tame_rows(std::max(num_slow_blocks, 1), kMeanPolynomials, kMeanPolynomials, 4);
    columns = source.tame_rows(num_columns(), kPageSize, kPageSize, 4);
  }

  // Of an even and an odd function each.
  int num_columns() const { return num_fast + kMeanPolynomials / 2; }

  // (cos, cos) of every pair, then (sin, −sin).
  std::vector<float> turns(Source& source) const {
    std::vector<float> result(2 * kMeanPairFloats, 0.0f);
    for (int i = 0; i < num_pairs; ++i) {
      const double angle = 6.283 * source.uniform();
      for (const std::size_t half : {0u, 1u}) {
        const auto place = static_cast<std::size_t>(2 * i) + half;
        result[place] = static_cast<float>(std::cos(angle));
        result[kMeanPairFloats + place] =
            static_cast<float>((half == 0 ? 1 : -1) * std::sin(angle));
      }
    }
    return result;
  }
};

// A value in fp64, and the magnitudes of what it is added up from.
struct Sized {
  double value = 0, size = 0;
  void add(double first, const Sized& second) {
    value += first * second.value;
    size += std::abs(first) * second.size;
  }
};

// Coefficients of a row by column: of the even function, then of the odd one.
std::vector<Sized> mean_coefficients(const MeanCase& c, int row) {
  std::vector<Sized> turned(static_cast<std::size_t>(2 * c.num_pairs));
  for (std::size_t i = 0; i < turned.size(); ++i) {
    double cosine = c.turn[i], sine = c.turn[kMeanPairFloats + i];
    double cosine_size = std::abs(cosine), sine_size = std::abs(sine);
    if (c.advances) {
      const double step_cosine = c.step[i], step_sine = c.step[kMeanPairFloats + i];
      const double old_cosine = cosine, old_sine = sine;
      cosine = old_cosine * step_cosine - old_sine * step_sine;
      sine = old_sine * step_cosine + old_cosine * step_sine;
      cosine_size = std::abs(old_cosine * step_cosine) + std::abs(old_sine * step_sine);
      sine_size = std::abs(old_sine * step_cosine) + std::abs(old_cosine * step_sine);
    }
    const float* const pairs = c.pairs.data() + row * kMeanPairFloats;
    turned[i].add(pairs[i], {cosine, cosine_size});
    turned[i].add(pairs[i ^ 1], {sine, sine_size});
  }
  const auto num_fast_floats = static_cast<std::size_t>(2 * c.num_fast);
  std::vector<Sized> result(turned.begin(), turned.begin() + 2 * c.num_fast);
  result.resize(num_fast_floats + kMeanPolynomials);
  const double constant = c.constants[static_cast<std::size_t>(row)];
  result[num_fast_floats] = {constant, std::abs(constant)};
  std::size_t first = num_fast_floats;
  const float* series = c.series.data();
  for (int level = 0; level < 4; ++level) {
    const std::size_t block_floats = std::size_t{2} << level;
    for (int block = 0; block < c.num_blocks[level]; ++block) {
      for (std::size_t lane = 0; lane < kMeanPolynomials; ++lane) {
        const std::size_t degree = 2 * (lane / block_floats) + lane % 2;
        result[num_fast_floats + degree].add(series[lane], turned[first + lane % block_floats]);
      }
      series += kMeanPolynomials;
      first += block_floats;
    }
  }
  return result;
}

void check_mean_tile(Source& source) {
  const MeanCase c(source);
  const Matrix before = any_matrix(c.num_rows, kPageSize, source, true);
  std::vector<std::vector<Sized>> coefficients;
  for (int r = 0; r < c.num_rows; ++r) coefficients.push_back(mean_coefficients(c, r));
  for (const KernelSet* set : sets_scalar_first()) {
    const std::string what = std::string(set->name) + " mean_tile fast " +
                             std::to_string(c.num_fast) + " pairs " + std::to_string(c.num_pairs);
    Matrix logits = before;
    std::vector<float> turn = c.turn;
    set->mean_tile({c.pairs.data(), c.constants.data(), turn.data(),
                    c.advances ? c.step.data() : nullptr, c.series.data(), c.columns.data(),
                    logits.data(), c.num_rows, c.num_fast, c.num_blocks, logits.stride});
    logits.require_gaps(what);
    if (!c.advances && turn != c.turn) fail(what + ": the turn was changed without a step");
    for (int r = 0; r < c.num_rows; ++r) {
      const std::vector<Sized>& of_row = coefficients[static_cast<std::size_t>(r)];
      for (int t = 0; t < kPageSize; ++t) {
        constexpr int kHalf = kPageSize / 2;
        const int x = t < kHalf ? kHalf - 1 - t : t - kHalf;
        Sized sum{before.at(r, t), std::abs(double{before.at(r, t)})};
        for (int i = 0; i < c.num_columns(); ++i) {
          const float* const column = c.columns.data() + i * kPageSize + x;
          sum.add(column[0], of_row[static_cast<std::size_t>(2 * i)]);
          sum.add(t < kHalf ? -column[kHalf] : column[kHalf],
                  of_row[static_cast<std::size_t>(2 * i + 1)]);
        }
        // Subnormal products at each of the four levels; factors are below 2^4.
        const double floor = kTiny * c.num_columns() * (1 + 17 * 17 * (c.num_pairs + 4));
        // Step, turn, blocks, their folding; then the columns, E ± O and the logit.
        Bound{sum.value, sum.size, floor}.require(
            logits.at(r, t), 2 * c.num_columns() + c.num_slow_blocks + 16, what);
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

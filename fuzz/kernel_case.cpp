#include "kernel_case.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/bf16.h"
#include "reference/codec.h"

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();

float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

Source::Source(const std::uint8_t* data, std::size_t size)
    : at_(data), end_(data + size), state_(0x9e3779b97f4a7c15ull) {
  for (std::size_t i = 0; i < size; ++i) state_ = (state_ ^ data[i]) * 0x100000001b3ull;
}

std::uint8_t Source::byte() {
  if (at_ != end_) return *at_++;
  // splitmix64 (Steele, Lea, Flood 2014).
  std::uint64_t mixed = state_ += 0x9e3779b97f4a7c15ull;
  mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
  mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
  return static_cast<std::uint8_t>(mixed >> 56);
}

std::uint32_t Source::word() {
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word = word << 8 | byte();
  return word;
}

int Source::below(int bound) {
  const int value = bound <= 256 ? byte() : byte() << 8 | byte();
  return value % bound;
}

double Source::uniform() { return word() * 0x1p-32; }

float Source::normal() {
  // Irwin and Hall: near enough to a Gaussian, and without a logarithm.
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += (byte() + 0.5) / 256;
  return static_cast<float>(sum);
}

float Source::finite(Temper temper) {
  switch (temper) {
    case Temper::kOrdinary: return normal();
    case Temper::kScaled: return std::ldexp(normal(), between(-140, 120));
    case Temper::kConstant: return 0.75f;
    case Temper::kAwkward: {
      constexpr float kAwkward[] = {
          0.0f,      -0.0f,    0x1p-149f, -0x1p-130f,  0.5f,     -0.5f,     1.5f,     1.0f,
          0x1p-126f, 0x1p120f, -0x1p120f, 0x1.fep127f, kLargest, -kLargest, 65504.0f, -1.0f};
      return kAwkward[below(16)];
    }
    case Temper::kAnyBits: break;
  }
  const float value = float_of(word());
  return std::isfinite(value) ? value : 1.0f;
}

std::vector<float> Source::rows(int num_rows, int width, std::int64_t stride) {
  std::vector<float> rows(static_cast<std::size_t>(num_rows * stride));
  for (int r = 0; r < num_rows; ++r) {
    const Temper of_row = temper();
    const float factor = one_in(2) ? 1.0f : std::ldexp(1.0f, between(-120, 100));
    float* row = rows.data() + r * stride;
    for (int c = 0; c < width; ++c) {
      row[c] = finite(of_row) * factor;
      if (!std::isfinite(row[c])) row[c] = kLargest;
    }
    if (one_in(8)) {
      constexpr float kBad[] = {kInf, -kInf, kNan, -kNan};
      row[below(width)] = kBad[below(4)];
    }
  }
  return rows;
}

std::vector<float> Source::tame_rows(int num_rows, int width, std::int64_t stride, int limit) {
  std::vector<float> result = rows(num_rows, width, stride);
  for (float& value : result) {
    if (!std::isfinite(value)) value = 0.25f;
    if (std::abs(value) >= std::ldexp(1.0f, limit)) {
      int exponent;
      value = std::ldexp(std::frexp(value, &exponent), limit - below(30));
    }
  }
  return result;
}

namespace oscar::kernels {

PlaneLayout any_layout(Source& source, bool with_exact) {
  const int head_dim = 16 * source.between(2, 16);
  constexpr int kBits[] = {2, 3, 4, 16};
  const int bits = kBits[source.below(with_exact ? 4 : 3)];
  if (bits == 16) return {head_dim, {16, head_dim}};
  int group = 16 * source.between(1, head_dim / 16);
  while (head_dim % group != 0) group -= 16;
  const auto codebook = static_cast<Codebook>(source.below(bits == 2 ? 3 : 2));
  const auto fit = static_cast<ScaleFit>(source.below(3));
  return {head_dim, {bits, group, codebook, fit}};
}

std::string describe(const PlaneLayout& layout) {
  const QuantSpec& quant = layout.quant;
  return "head_dim " + std::to_string(layout.head_dim) + " bits " + std::to_string(quant.bits) +
         " group " + std::to_string(quant.group_size) + " " + codebook_name(quant.codebook) +
         " fit " + std::to_string(static_cast<int>(quant.scale_fit));
}

std::vector<std::uint8_t> any_plane(Source& source, const PlaneLayout& layout) {
  std::vector<std::uint8_t> plane(static_cast<std::size_t>(layout.plane_bytes()));
  for (std::uint8_t& byte : plane) byte = source.byte();
  if (source.one_in(2)) {
    const bool is_exact = layout.quant.bits == 16;
    for (std::int64_t at = is_exact ? 0 : layout.scales_offset(); at < layout.plane_bytes();
         at += 2) {
      const bf16_t value = bf16_from_float(
          std::ldexp(source.finite(Source::Temper::kOrdinary), source.between(-8, 8)));
      std::memcpy(plane.data() + at, &value, sizeof value);
    }
  }
  const int num_written = source.below(8);
  const std::vector<float> rows =
      source.tame_rows(num_written, layout.head_dim, layout.head_dim, 100);
  for (int i = 0; i < num_written; ++i) {
    std::uint8_t* const planes[] = {plane.data()};
    const std::int32_t token = source.below(kPageSize);
    sets_scalar_first()[0]->encode_rows(
        {rows.data() + i * layout.head_dim, planes, &token, 1, layout.head_dim, layout, 0.96f});
  }
  return plane;
}

DecodedRow decode_row(const PlaneLayout& layout, const std::vector<std::uint8_t>& plane,
                      int token) {
  DecodedRow decoded;
  const auto dim = static_cast<std::size_t>(layout.head_dim);
  if (layout.quant.bits == 16) {
    for (std::size_t c = 0; c < dim; ++c) {
      bf16_t value;
      std::memcpy(&value,
                  plane.data() + static_cast<std::size_t>(token * layout.code_row_bytes()) + 2 * c,
                  sizeof value);
      decoded.codes.push_back(bf16_to_float(value));
    }
    decoded.scales.assign(dim, 1);
    decoded.zeros.assign(dim, 0);
    return decoded;
  }
  const reference::Row row = reference::read_row(plane.data(), layout, token);
  for (std::size_t c = 0; c < dim; ++c) {
    const std::size_t group = c / static_cast<std::size_t>(layout.quant.group_size);
    decoded.codes.push_back(row.codes[c]);
    decoded.scales.push_back(row.scales[group]);
    decoded.zeros.push_back(row.zeros[group]);
  }
  return decoded;
}

void Matrix::require_gaps(const std::string& what) const {
  for (int r = 0; r < num_rows; ++r) {
    for (int c = width; c < stride; ++c) {
      if (at(r, c) != kGuard) fail(what + ": wrote past the end of a row");
    }
  }
}

Matrix any_matrix(int rows, int columns, Source& source, bool is_tame) {
  Matrix matrix(rows, columns, source);
  const std::vector<float> values = is_tame ? source.tame_rows(rows, columns, matrix.stride, 40)
                                            : source.rows(rows, columns, matrix.stride);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) {
      matrix.at(r, c) = values[static_cast<std::size_t>(r * matrix.stride + c)];
    }
  }
  return matrix;
}

Matrix any_weights(int rows, int tokens, Source& source) {
  Matrix p(rows, tokens, source);
  for (int r = 0; r < rows; ++r) {
    const bool is_sparse = source.one_in(2);
    for (int t = 0; t < tokens; ++t) {
      const double weight = source.uniform();
      p.at(r, t) = is_sparse && source.one_in(2) ? 0.0f
                   : source.one_in(4) ? static_cast<float>(std::ldexp(weight, -source.below(130)))
                                      : static_cast<float>(weight);
    }
  }
  return p;
}

std::string name_of(const KernelSet& set, const char* operation, const PlaneLayout& layout,
                    int rows, int tokens) {
  return std::string(set.name) + " " + operation + " " + describe(layout) + " rows " +
         std::to_string(rows) + " tokens " + std::to_string(tokens);
}

void fail(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::abort();
}

void require_same(std::span<const float> values, std::span<const float> scalar,
                  const std::string& what) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i]) && std::isnan(scalar[i])) continue;
    if (std::memcmp(&values[i], &scalar[i], sizeof values[i]) == 0) continue;
    char text[96];
    std::snprintf(text, sizeof text, ": value %zu is %a, scalar's %a", i, double{values[i]},
                  double{scalar[i]});
    fail(what + text);
  }
}

bool Bound::is_checked() const {
  return std::isfinite(sum) && std::isfinite(floor) && magnitude < kLarge;
}

void Bound::require(float value, double num_roundings, const std::string& what) const {
  if (!is_checked()) return;
  const double tolerance = num_roundings * kEps * magnitude + floor;
  if (std::abs(value - sum) <= tolerance) return;
  char text[128];
  std::snprintf(text, sizeof text, ": %a is not within %a of %a", double{value}, tolerance, sum);
  fail(what + text);
}

}  // namespace oscar::kernels

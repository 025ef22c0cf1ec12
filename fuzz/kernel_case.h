// What the differential fuzzers of kernels share: an input as a stream of choices and values,
// layouts, planes of hostile bytes, and comparisons that abort with one line.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.h"

// Bytes of the input while there are some, then those of a generator that the input seeds: a short
// input is a whole case.
class Source {
 public:
  Source(const std::uint8_t* data, std::size_t size);

  std::uint8_t byte();
  std::uint32_t word();
  int below(int bound);  // [0, bound), bound ≤ 65536
  int between(int first, int last) { return first + below(last - first + 1); }
  bool one_in(int count) { return below(count) == 0; }
  double uniform();  // [0, 1)

  // A value of an ordinary size, one of any exponent, an awkward one (zeros, subnormals, ties, the
  // largest), or any 32 bits.
  enum class Temper { kOrdinary, kScaled, kConstant, kAwkward, kAnyBits };
  Temper temper() { return static_cast<Temper>(below(5)); }
  float finite(Temper temper);
  // Rows of one temper each; a row in eight has values that are not finite.
  std::vector<float> rows(int num_rows, int width, std::int64_t stride);
  // As rows(), all values finite and below 2^limit.
  std::vector<float> tame_rows(int num_rows, int width, std::int64_t stride, int limit);

 private:
  float normal();

  const std::uint8_t* at_;
  const std::uint8_t* end_;
  std::uint64_t state_;
};

namespace oscar::kernels {

// Any legal layout; with_exact: 16 bits among them.
PlaneLayout any_layout(Source& source, bool with_exact);
std::string describe(const PlaneLayout& layout);

// The sets that this machine runs, "scalar" first.
std::span<const KernelSet* const> sets_scalar_first();

// A plane as unwritten slots may leave it, then tokens encoded over it. Half of the planes have
// metadata of moderate size in the slots that were not written, the others any bytes.
std::vector<std::uint8_t> any_plane(Source& source, const PlaneLayout& layout);

// A row of a plane in fp64; for 16 bits: the values, with scale 1 and no zero point.
struct DecodedRow {
  std::vector<double> codes;          // [head_dim] or, for 16 bits, values
  std::vector<double> scales, zeros;  // [head_dim]: of each channel's group
};
DecodedRow decode_row(const PlaneLayout& layout, const std::vector<std::uint8_t>& plane, int token);

// Rows with gaps between them, which hold kGuard and must stay so.
inline constexpr float kGuard = -9.0f;
struct Matrix {
  int num_rows, width;
  std::int64_t stride;
  std::vector<float> values;

  Matrix(int rows, int columns, Source& source)
      : num_rows(rows),
        width(columns),
        stride(columns + source.below(4)),
        values(static_cast<std::size_t>(rows * stride), kGuard) {}
  float* data() { return values.data(); }
  const float* data() const { return values.data(); }
  float& at(int row, int column) { return values[static_cast<std::size_t>(row * stride + column)]; }
  float at(int row, int column) const {
    return values[static_cast<std::size_t>(row * stride + column)];
  }
  void require_gaps(const std::string& what) const;
};

// Values of any temper; tame: finite and below 2^40.
Matrix any_matrix(int rows, int columns, Source& source, bool is_tame);
// Weights of a softmax: many zeros, the others of any exponent up to 1.
Matrix any_weights(int rows, int tokens, Source& source);

// "avx2 qk_codes head_dim 64 … rows 3 tokens 17".
std::string name_of(const KernelSet& set, const char* operation, const PlaneLayout& layout,
                    int rows, int tokens);

[[noreturn]] void fail(const std::string& what);

// The same bits, or NaN both.
void require_same(std::span<const float> values, std::span<const float> scalar,
                  const std::string& what);

// A sum in fp64 and what single precision may make of it.
struct Bound {
  double sum = 0;
  double magnitude = 0;  // Σ of the terms' magnitudes
  double floor = 0;      // absolute error of products that are subnormal
  // False where a term is not finite or a partial sum may overflow: then any result is right.
  bool is_checked() const;
  void require(float value, double num_roundings, const std::string& what) const;
};

inline constexpr double kEps = 0x1p-24;    // half an ulp of 1 in single precision
inline constexpr double kTiny = 0x1p-149;  // the smallest positive float
inline constexpr double kLarge = 0x1p126;  // sums of magnitudes below it do not overflow

}  // namespace oscar::kernels

// The codec from its definition, in fp64 and one channel at a time: what every kernel is judged
// against.
//
// The definition is EncodeParams in kernels/kernels.h. Here every step is exact but for fp64
// rounding; a kernel works in single precision, so its scales may lie one BF16 step away and its
// codes may differ where x/scale + zero_point is a tie.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "format/plane_layout.h"

namespace oscar::reference {

// One token of a plane. Scales and zero points hold BF16 values; zero points of the symmetric
// codebook are (2^bits − 1)/2. Trellis codes: codes are the levels that they stand for, the zero
// point is 3.5.
struct Row {
  std::vector<int> codes;             // [head_dim]
  std::vector<double> scales, zeros;  // [num_groups]
};

// Nearest BF16, ties to even.
double round_to_bf16(double value);

// The ⌈clip_ratio·head_dim⌉-th smallest magnitude of the row (the product in single precision); at
// most 2^120.
double clip_threshold(std::span<const float> row, float clip_ratio);

// The row's values clamped to ±threshold.
std::vector<double> clip(std::span<const float> row, double threshold);

// x/scale + zero_point before rounding: a code is decided where this is not half-way between two
// integers.
double level(double x, double scale, double zero_point);

// The whole of one row, which must be finite.
Row encode(std::span<const float> row, const PlaneLayout& layout, float clip_ratio);

// Its steps, for one group of clipped values. Scale and zero point hold BF16 values.
struct GroupScale {
  double scale, zero;
};
GroupScale choose_scale(std::span<const double> clipped, int bits, Codebook codebook);
std::vector<int> choose_codes(std::span<const double> clipped, GroupScale group, int bits);

// Levels of trellis codes, sixteen channels a word (format/trellis.h), from each channel's u and a;
// and the channels' u of levels that a word can have.
std::vector<int> trellis_levels(std::span<const int> u, std::span<const int> a);
// Σ (x/scale + 3.5 − level)² of a word, and the least that any of its paths has.
double trellis_cost(std::span<const double> clipped, double scale, std::span<const int> levels);
double least_trellis_cost(std::span<const double> clipped, double scale);
// Levels of the path that has it.
std::vector<int> choose_trellis_levels(std::span<const double> clipped, double scale);
// What ScaleFit makes of the scale; `exact` is the unclipped group.
double fit_scale(std::span<const float> exact, std::span<const int> codes, GroupScale group,
                 ScaleFit fit);

// scale·(code − zero_point).
std::vector<double> decode(const Row& row, const PlaneLayout& layout);

// A token's row in a plane, bit by bit.
Row read_row(const std::uint8_t* plane, const PlaneLayout& layout, int token);
void write_row(const Row& row, const PlaneLayout& layout, int token, std::uint8_t* plane);

}  // namespace oscar::reference

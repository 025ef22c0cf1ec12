// Shared by the tests of kernels: the sets to run, rows of every temper, planes.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace oscar::kernels {

inline constexpr int kHeadDims[] = {32, 64, 80, 96, 112, 128, 192, 256};
inline constexpr double kEps = 0x1p-24;  // half an ulp of 1 in single precision

// Sets that this machine runs. The others are named on stdout, once a program.
std::vector<const KernelSet*> runnable_sets();
const KernelSet& scalar_set();

// Rows that a codec meets, by kind; the ordinary kinds have magnitudes in the normal range and few
// ties.
enum class RowKind {
  kNormal,
  kHeavyTailed,
  kOffset,
  kManyTies,
  kSparse,
  kConstant,
  kSubnormal,
  kHuge,
};
inline constexpr RowKind kOrdinaryKinds[] = {RowKind::kNormal, RowKind::kHeavyTailed,
                                             RowKind::kOffset};
inline constexpr RowKind kAllKinds[] = {
    RowKind::kNormal, RowKind::kHeavyTailed, RowKind::kOffset,    RowKind::kManyTies,
    RowKind::kSparse, RowKind::kConstant,    RowKind::kSubnormal, RowKind::kHuge};
std::vector<float> make_row(RowKind kind, int head_dim, std::mt19937_64& random);

// A generator whose seed is printed.
std::mt19937_64 seeded(std::uint64_t seed);

std::vector<float> normal_values(std::size_t count, std::mt19937_64& random);

// Every legal layout of a head size: bits 2, 3, 4, every codebook, the scale fits, the group sizes
// that divide it.
std::vector<PlaneLayout> all_layouts(int head_dim);
std::string describe(const PlaneLayout& layout);

// A plane with every byte set to `fill`.
std::vector<std::uint8_t> make_plane(const PlaneLayout& layout, std::uint8_t fill);

// Encodes rows to tokens 0, 1, …; returns what encode_rows returns.
bool encode_tokens(const KernelSet& set, std::span<const float> rows, const PlaneLayout& layout,
                   float clip_ratio, std::uint8_t* plane);

}  // namespace oscar::kernels

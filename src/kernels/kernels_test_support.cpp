#include "kernels/kernels_test_support.h"

#include <cmath>
#include <iostream>
#include <numeric>

namespace oscar::kernels {
namespace {

void name_sets_left_out() {
  for (const KernelSet* set : all_kernel_sets()) {
    if (set->supported()) continue;
    std::cout << "[ not run  ] kernel set " << set->name << ": this CPU lacks " << set->needs
              << "\n";
  }
}

}  // namespace

std::vector<const KernelSet*> runnable_sets() {
  static const bool named = (name_sets_left_out(), true);
  (void)named;
  std::vector<const KernelSet*> sets;
  for (const KernelSet* set : all_kernel_sets()) {
    if (set->supported()) sets.push_back(set);
  }
  return sets;
}

const KernelSet& scalar_set() { return kernel_set_by_name("scalar"); }

std::mt19937_64 seeded(std::uint64_t seed) {
  std::cout << "[   seed   ] " << seed << "\n";
  return std::mt19937_64(seed);
}

std::vector<float> normal_values(std::size_t count, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<float> make_row(RowKind kind, int head_dim, std::mt19937_64& random) {
  std::vector<float> row = normal_values(static_cast<std::size_t>(head_dim), random);
  const float constant = row[0];
  for (float& x : row) {
    switch (kind) {
      case RowKind::kNormal: break;
      case RowKind::kHeavyTailed: x *= std::exp(2 * std::abs(x)); break;
      case RowKind::kOffset: x += 10 * constant; break;
      case RowKind::kManyTies: x = std::nearbyint(2 * x) / 2; break;
      case RowKind::kSparse: x = x > 1 ? x : x > 0 ? 0.0f : -0.0f; break;
      case RowKind::kConstant: x = constant; break;
      case RowKind::kSubnormal: x *= 1e-40f; break;
      case RowKind::kHuge: x *= 1e36f; break;
    }
  }
  return row;
}

std::vector<PlaneLayout> all_layouts(int head_dim) {
  std::vector<PlaneLayout> layouts;
  for (const int bits : {2, 3, 4}) {
    for (int group_size = 16; group_size <= head_dim; group_size += 16) {
      if (head_dim % group_size != 0) continue;
      for (const Codebook codebook :
           {Codebook::kAffine, Codebook::kSymmetric, Codebook::kTrellis}) {
        if (codebook == Codebook::kTrellis && bits != 2) continue;
        for (const ScaleFit fit :
             {ScaleFit::kPlain, ScaleFit::kUnbiased, ScaleFit::kLeastSquares}) {
          layouts.push_back({head_dim, {bits, group_size, codebook, fit}});
        }
      }
    }
  }
  return layouts;
}

std::string describe(const PlaneLayout& layout) {
  const QuantSpec& quant = layout.quant;
  return "head_dim " + std::to_string(layout.head_dim) + " bits " + std::to_string(quant.bits) +
         " group " + std::to_string(quant.group_size) + " " + codebook_name(quant.codebook) +
         " fit " + std::to_string(static_cast<int>(quant.scale_fit));
}

std::vector<std::uint8_t> make_plane(const PlaneLayout& layout, std::uint8_t fill) {
  return std::vector<std::uint8_t>(static_cast<std::size_t>(layout.plane_bytes()), fill);
}

bool encode_tokens(const KernelSet& set, std::span<const float> rows, const PlaneLayout& layout,
                   float clip_ratio, std::uint8_t* plane) {
  const std::size_t num_rows = rows.size() / static_cast<std::size_t>(layout.head_dim);
  const std::vector<std::uint8_t*> planes(num_rows, plane);
  std::vector<std::int32_t> tokens(num_rows);
  std::iota(tokens.begin(), tokens.end(), 0);
  return set.encode_rows({rows.data(), planes.data(), tokens.data(),
                          static_cast<std::int64_t>(num_rows), layout.head_dim, layout,
                          clip_ratio});
}

}  // namespace oscar::kernels

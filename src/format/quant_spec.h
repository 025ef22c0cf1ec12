// How one side (keys or values) of the cache is stored: bits, levels, groups.
#pragma once

#include <cstdint>

namespace oscar {

inline constexpr int kPageSize = 64;  // tokens per page
inline constexpr int kMinHeadDim = 32;
inline constexpr int kMaxHeadDim = 256;
inline constexpr int kHeadDimMultiple = 16;
inline constexpr int kGroupMultiple = 16;

enum class Codebook : std::uint8_t {
  kAffine = 0,     // x̂ = scale·(code − zero_point); scale and zero_point BF16 per group
  kSymmetric = 1,  // x̂ = scale·(code − (2^bits − 1)/2); scale BF16 per group, no zero point
  kTrellis = 2,  // x̂ = scale·(level − 3.5), a level of 3 bits from 2-bit codes; format/trellis.h
};

constexpr const char* codebook_name(Codebook codebook) {
  constexpr const char* kNames[] = {"affine", "symmetric", "trellis"};
  return kNames[static_cast<int>(codebook)];
}

// What the stored scale of a group is fitted to, once the codes are chosen.
enum class ScaleFit : std::uint8_t {
  kPlain = 0,         // the scale that the codes were rounded with
  kUnbiased = 1,      // × ⟨x, x⟩ / ⟨x, x̂⟩: keeps E⟨q, k̂⟩ = ⟨q, k⟩ (keys)
  kLeastSquares = 2,  // × ⟨x, x̂⟩ / ⟨x̂, x̂⟩: smallest squared error (values)
};

// bits 16 means exact: BF16 rows in the raw basis, no codes, no groups.
struct QuantSpec {
  int bits = 2;          // 2, 3, 4 or 16
  int group_size = 128;  // channels that share a scale; divides head_dim, multiple of 16
  Codebook codebook = Codebook::kAffine;
  ScaleFit scale_fit = ScaleFit::kPlain;
  bool operator==(const QuantSpec&) const = default;

  // Bits of a level, which is what scales and zero points apply to: those of a code but for
  // kTrellis.
  [[gnu::always_inline]] constexpr int level_bits() const {
    return codebook == Codebook::kTrellis && bits == 2 ? 3 : bits;
  }
};

}  // namespace oscar

// A model's rotary position embedding as data. Everything that llama.cpp or Hugging Face can
// express with one position per token (linear, NTK, YaRN, frequency factors, partial rotation) is a
// frequency per pair and one magnitude.
#pragma once

#include <cstdint>
#include <vector>

namespace oscar {

enum class RopePairing : std::uint8_t {
  kHalfSplit = 0,    // channel f pairs with f + num_pairs ("neox": Qwen, Gemma)
  kInterleaved = 1,  // channel 2f pairs with 2f + 1 ("norm": Llama GGUFs)
};

struct RopeSpec {
  RopePairing pairing = RopePairing::kHalfSplit;
  std::vector<float> inv_freq;  // [num_pairs] radians per position; empty: no rotation known, the
                                // static mean is used
  float magnitude = 1.0f;       // factor on the rotated channels (YaRN attention factor)

  int num_pairs() const { return static_cast<int>(inv_freq.size()); }
  int rotated_dims() const { return 2 * num_pairs(); }
  // Channels of pair f.
  int first(int f) const { return pairing == RopePairing::kHalfSplit ? f : 2 * f; }
  int second(int f) const {
    return pairing == RopePairing::kHalfSplit ? f + num_pairs() : 2 * f + 1;
  }
  bool operator==(const RopeSpec&) const = default;
};

}  // namespace oscar

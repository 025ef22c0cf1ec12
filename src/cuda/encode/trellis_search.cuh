// The codes of a trellis word that lie nearest to a row: the CPU's search
// (kernels/trellis_search.h), a word a thread, operation for operation. Channels go by in a loop,
// so that the costs of a channel serve all starts and a path is two registers.
#pragma once

#include <cstdint>

#include "format/trellis.h"

namespace oscar::cuda::encode {

// A path's cost and its u_t at bit 2t.
struct TrellisPath {
  float cost;
  uint32_t bits;
};

__device__ __forceinline__ TrellisPath cheaper(const TrellisPath& a, const TrellisPath& b) {
  const bool second = b.cost < a.cost;
  return {second ? b.cost : a.cost, second ? b.bits : a.bits};
}

// Costs of c = 2·(u_t ⊕ u_{t−2}) + u_{t−1}, the nearer of the levels c and c + 4.
struct TrellisCosts {
  float of[4];

  static __device__ __forceinline__ TrellisCosts at(float position) {
    TrellisCosts costs;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float near = __fsub_rn(position, static_cast<float>(c));
      const float far = __fsub_rn(position, static_cast<float>(c + 4));
      costs.of[c] = fminf(__fmul_rn(near, near), __fmul_rn(far, far));
    }
    return costs;
  }
};

// The state that u_t, u_{t−1} are, index u_t + 2·u_{t−1}. set: bit 2t.
__device__ __forceinline__ TrellisPath extended(const TrellisPath (&paths)[4], int u, int u1,
                                                const TrellisCosts& costs, uint32_t set) {
  TrellisPath best = paths[u1], other = paths[u1 + 2];
  best.cost = __fadd_rn(best.cost, costs.of[2 * u + u1]);          // u_{t−2} = 0
  other.cost = __fadd_rn(other.cost, costs.of[2 * (u ^ 1) + u1]);  // u_{t−2} = 1
  best = cheaper(best, other);
  if (u != 0) best.bits |= set;
  return best;
}

// The paths that start with u_14 = before_last (known when compiled, or the same code serves both)
// and end in it, for both u_15.
struct TrellisStarts {
  TrellisPath paths[2][4];

  __device__ __forceinline__ void begin(const TrellisCosts& first, const TrellisCosts& second,
                                        bool before_last) {
#pragma unroll
    for (int last = 0; last < 2; ++last) {
#pragma unroll
      for (int u0 = 0; u0 < 2; ++u0) {
        const float cost = before_last ? first.of[2 * (u0 ^ 1) + last] : first.of[2 * u0 + last];
#pragma unroll
        for (int u1 = 0; u1 < 2; ++u1) {
          paths[last][u1 + 2 * u0] = {__fadd_rn(cost, second.of[2 * (u1 ^ last) + u0]),
                                      static_cast<uint32_t>(u0 | u1 << 2)};
        }
      }
    }
  }
  __device__ __forceinline__ void extend(const TrellisCosts& costs, uint32_t set) {
#pragma unroll
    for (auto& from : paths) {
      TrellisPath next[4];
#pragma unroll
      for (int state = 0; state < 4; ++state) {
        next[state] = extended(from, state & 1, state >> 1, costs, set);
      }
#pragma unroll
      for (int state = 0; state < 4; ++state) from[state] = next[state];
    }
  }
  __device__ __forceinline__ TrellisPath best(const TrellisCosts& fifteenth,
                                              const TrellisCosts& sixteenth,
                                              bool before_last) const {
    TrellisPath found[2];
#pragma unroll
    for (int last = 0; last < 2; ++last) {
      TrellisPath ends[2];  // of u_13
#pragma unroll
      for (int u1 = 0; u1 < 2; ++u1) {
        const TrellisPath zero = extended(paths[last], 0, u1, fifteenth, 1u << 28);
        const TrellisPath one = extended(paths[last], 1, u1, fifteenth, 1u << 28);
        ends[u1] = before_last ? one : zero;
      }
      const int with = 2 * last, without = 2 * (last ^ 1);
      ends[0].cost =
          __fadd_rn(ends[0].cost, before_last ? sixteenth.of[with + 1] : sixteenth.of[with]);
      ends[1].cost =
          __fadd_rn(ends[1].cost, before_last ? sixteenth.of[without + 1] : sixteenth.of[without]);
      found[last] = cheaper(ends[0], ends[1]);
      if (last != 0) found[last].bits |= 1u << 30;
    }
    return cheaper(found[0], found[1]);
  }
};

// Whether the level 4 higher is nearer, at a code's upper bit. bits: the u of a word.
__device__ __forceinline__ uint32_t with_upper_bits(const float* positions, uint32_t bits) {
  const uint32_t low = trellis_low_bits(bits);
  uint32_t word = bits;
#pragma unroll
  for (int t = 0; t < kTrellisChannels; ++t) {
    const float middle = __fadd_rn(static_cast<float>(low >> 2 * t & 3), 2.0f);
    if (positions[t] > middle) word |= 2u << 2 * t;
  }
  return word;
}

// Words in shared memory: sixteen positions x/scale + 3.5, then the word's codes. The stride keeps
// words of neighbouring threads in different banks.
inline constexpr int kTrellisStride = kTrellisChannels + 1;

__device__ __forceinline__ uint32_t& codes_of_word(float* words, int word) {
  return reinterpret_cast<uint32_t*>(words)[word * kTrellisStride + kTrellisChannels];
}

// Searches a word and stores its codes.
__device__ __forceinline__ void search_word(float* words, int word) {
  const float* x = words + word * kTrellisStride;
  const auto costs = [x](int t) { return TrellisCosts::at(x[t]); };
  TrellisStarts starts[2];
  {
    const TrellisCosts first = costs(0), second = costs(1);
    starts[0].begin(first, second, false);
    starts[1].begin(first, second, true);
  }
#pragma unroll 1
  for (int t = 2; t < kTrellisChannels - 2; ++t) {
    const TrellisCosts now = costs(t);
    starts[0].extend(now, 1u << 2 * t);
    starts[1].extend(now, 1u << 2 * t);
  }
  const TrellisCosts fifteenth = costs(14), sixteenth = costs(15);
  const TrellisPath path = cheaper(starts[0].best(fifteenth, sixteenth, false),
                                   starts[1].best(fifteenth, sixteenth, true));
  codes_of_word(words, word) = with_upper_bits(x, path.bits);
}

// The same by two neighbouring lanes, half of the starts each: lane_half 0 and 1. All lanes of the
// warp take part.
__device__ __forceinline__ void search_word_together(float* words, int word, int lane_half) {
  const float* x = words + word * kTrellisStride;
  const auto costs = [x](int t) { return TrellisCosts::at(x[t]); };
  TrellisStarts starts;
  starts.begin(costs(0), costs(1), lane_half != 0);
#pragma unroll 2
  for (int t = 2; t < kTrellisChannels - 2; ++t) starts.extend(costs(t), 1u << 2 * t);
  const TrellisPath mine = starts.best(costs(14), costs(15), lane_half != 0);
  const TrellisPath other = {__shfl_xor_sync(~0u, mine.cost, 1),
                             __shfl_xor_sync(~0u, mine.bits, 1)};
  const TrellisPath path = lane_half ? cheaper(other, mine) : cheaper(mine, other);
  if (lane_half == 0) codes_of_word(words, word) = with_upper_bits(x, path.bits);
}

// Level of channel t of a word, less its zero point.
__device__ __forceinline__ float centred_level(uint32_t codes, int t) {
  const uint32_t low = trellis_low_bits(codes) >> 2 * t & 3, high = (codes >> 2 * t & 2) << 1;
  return static_cast<float>(low | high) - 3.5f;
}

}  // namespace oscar::cuda::encode

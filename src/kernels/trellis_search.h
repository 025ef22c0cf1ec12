// The codes of trellis words that lie nearest to a row. Included after one ISA header of simd/.
//
// A word is a closed path over sixteen channels (format/trellis.h) and independent of all others,
// so words lie in lanes, of one row or of several, and every lane does the same arithmetic in the
// same order: the same codes from every set. With c_t = 2·(u_t ⊕ u_{t−2}) + u_{t−1} a channel at
// position v costs m_c = min((v − c)², (v − c − 4)²), and the state after it is (u_t, u_{t−1}).
// For each of the four values of (u_15, u_14), from which the path starts and in which it ends,
// dynamic programming gives the cheapest path. Equal costs: u_{t−2} = 0, and the first start.
#pragma once

#include "kernels/codes.h"

namespace oscar::kernels {
namespace {

// Costs of the four c of a channel, and v.
struct TrellisStep {
  simd::F cost[4], position;
};

// A path's cost and its u_t at bit 2t.
struct TrellisPath {
  simd::F cost;
  simd::U bits;
};

inline TrellisPath cheaper(const TrellisPath& a, const TrellisPath& b) {
  const simd::I second = b.cost < a.cost;
  return {second ? b.cost : a.cost, second ? b.bits : a.bits};
}

// The state that u_t, u_{t−1} are: index u_t + 2·u_{t−1}.
inline TrellisPath extended(const TrellisPath (&paths)[4], int u, int u1, const TrellisStep& step,
                            int t) {
  TrellisPath best = paths[u1], other = paths[u1 + 2];
  best.cost += step.cost[2 * u + u1];         // u_{t−2} = 0
  other.cost += step.cost[2 * (u ^ 1) + u1];  // u_{t−2} = 1
  best = cheaper(best, other);
  if (u != 0) best.bits |= 1u << 2 * t;
  return best;
}

// The cheapest path with u_15 = last and u_14 = before_last.
inline TrellisPath search_from(const TrellisStep (&steps)[kTrellisChannels], int last,
                               int before_last) {
  TrellisPath paths[4];
  for (int u0 = 0; u0 < 2; ++u0) {
    for (int u1 = 0; u1 < 2; ++u1) {
      paths[u1 + 2 * u0] = {
          steps[0].cost[2 * (u0 ^ before_last) + last] + steps[1].cost[2 * (u1 ^ last) + u0],
          simd::broadcast_bits(static_cast<std::uint32_t>(u0 | u1 << 2))};
    }
  }
  for (int t = 2; t < kTrellisChannels - 2; ++t) {
    TrellisPath next[4];
#pragma GCC unroll 4
    for (int state = 0; state < 4; ++state) {
      next[state] = extended(paths, state & 1, state >> 1, steps[t], t);
    }
    for (int state = 0; state < 4; ++state) paths[state] = next[state];
  }
  constexpr int kEnd = kTrellisChannels - 2;
  TrellisPath ends[4] = {};
  for (int u1 = 0; u1 < 2; ++u1) {
    ends[before_last + 2 * u1] = extended(paths, before_last, u1, steps[kEnd], kEnd);
  }
  return extended(ends, last, before_last, steps[kEnd + 1], kEnd + 1);
}

// positions: [num_words][16] x/scale + 3.5; words: [num_words] and room for a vector more.
inline void search_trellis(const float* positions, int num_words, std::uint32_t* words) {
  for (int first = 0; first < num_words; first += simd::kWidth) {
    const int count = num_words - first < simd::kWidth ? num_words - first : simd::kWidth;
    TrellisStep steps[kTrellisChannels];
    for (int c = 0; c < kTrellisChannels; c += simd::kWidth) {
      simd::F block[simd::kWidth] = {};
      for (int lane = 0; lane < count; ++lane) {
        block[lane] = simd::load(positions + (first + lane) * kTrellisChannels + c);
      }
      simd::transpose(block);
      for (int i = 0; i < simd::kWidth; ++i) steps[c + i].position = block[i];
    }
    for (TrellisStep& step : steps) {
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        const simd::F near = step.position - simd::broadcast(static_cast<float>(c));
        const simd::F far = step.position - simd::broadcast(static_cast<float>(c + 4));
        step.cost[c] = simd::min(near * near, far * far);
      }
    }
    TrellisPath best = search_from(steps, 0, 0);
    best = cheaper(best, search_from(steps, 1, 0));
    best = cheaper(best, search_from(steps, 0, 1));
    best = cheaper(best, search_from(steps, 1, 1));
    // The upper bits: whether the level 4 higher is nearer.
    const simd::U low = trellis_low_bits(best.bits);
    simd::U word = best.bits;
    for (int t = 0; t < kTrellisChannels; ++t) {
      const auto shift = static_cast<std::uint32_t>(2 * t);
      const simd::F middle = simd::low_bits_to_float<2>(low >> shift) + simd::broadcast(2.0f);
      const simd::I is_upper = steps[t].position > middle;
      word |= reinterpret_cast<simd::U>(is_upper) & (2u << shift);
    }
    simd::store_words(reinterpret_cast<std::uint8_t*>(words + first), word);
  }
}

}  // namespace
}  // namespace oscar::kernels

// Rows in matrix fragments to trellis codes: eight rows of a warp at a time, whose positions go
// through shared memory to the search, a word a lane.
//
// The clip and the scale are those of the other codes (row_codes.cuh); rows out of the ordinary
// take theirs from the general encoder (quantizer.cuh), eight lanes a row. What is done here is the
// same for both, but that the latter divide, and keep the powers of two that would commute.
#pragma once

#include "cuda/encode/row_job.cuh"
#include "cuda/encode/trellis_search.cuh"

namespace oscar::cuda::encode {

// Of the lane's row.
struct TrellisScale {
  float scale;      // before ScaleFit
  float threshold;  // of the clip
  float shrink;     // power of two that keeps the sums of the fit in range; 1 of ordinary rows
};

template <int kHeadDim>
struct TrellisRows {
  static constexpr int kTiles = kHeadDim / 8, kWords = kHeadDim / kTrellisChannels;
  static constexpr int kBytes = 8 * kWords * kTrellisStride * 4;
  using Half = RowFragment<kTiles>;

  float* words;  // [8·kWords][kTrellisStride] in shared memory, a warp's or a block's own

  // Word and channel of a lane's value v[n][e].
  static __device__ __forceinline__ int word_of(int n) {
    return ((threadIdx.x & 31) >> 2) * kWords + n / 2;
  }
  static __device__ __forceinline__ int channel_of(int n, int e) {
    return n % 2 * 8 + 2 * static_cast<int>(threadIdx.x & 3) + e;
  }

  // Positions of the rows; a row that is not finite becomes zeros. False when a live row was not.
  // All lanes of the warp take part.
  __device__ __forceinline__ bool prepare(Half& v, const RowRules& rules, const RankGuess& guess,
                                          bool is_live, TrellisScale& scale) const {
    float threshold = 0x1p120f;
    bool is_fine;
    {
      RankSearch<kTiles> search;
      search.load(v);
      is_fine = search.is_finite();
      if (guess.rank < kHeadDim) {
        search.run(guess, is_live);
        is_fine = search.resolve(v, guess.rank, is_live, threshold) && is_fine;
      }
    }
    const RowScale chosen = choose_scale<kTiles>(v, rules, threshold);
    is_fine = is_fine && is_ordinary_scale(chosen.scale);
    scale = {chosen.scale, threshold, 1.0f};
    if (__all_sync(~0u, is_fine || !is_live)) {
      put(v, threshold, [&](float x) { return quotient(x, chosen.scale, chosen.inverse); });
      return true;
    }
    const bool all_finite = prepare_any(v, rules, is_live, scale);
    const float divisor = scale.scale == 0 ? 1.0f : scale.scale;
    put(v, scale.threshold, [&](float x) { return __fdiv_rn(x, divisor); });
    return all_finite;
  }

  // The stored scale, after the search.
  __device__ __forceinline__ float fitted(const Half& v, const RowRules& rules,
                                          const TrellisScale& s) const {
    if (rules.fit == ScaleFit::kPlain) return s.scale;
    const bool is_unbiased = rules.fit == ScaleFit::kUnbiased;
    float products[2] = {0, 0}, squares[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint32_t codes = codes_of_word(words, word_of(n));
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float level = centred_level(codes, channel_of(n, e));
        const float exact = __fmul_rn(v[n][e], s.shrink);
        const float decoded = __fmul_rn(__fmul_rn(s.scale, level), s.shrink);
        const float squared = is_unbiased ? exact : decoded;
        products[e] = __fadd_rn(products[e], __fmul_rn(exact, decoded));
        squares[e] = __fadd_rn(squares[e], __fmul_rn(squared, squared));
      }
    }
    const float xd = fragment_sum(products), second = fragment_sum(squares);
    return fitted_scale(s.scale, is_unbiased ? __fdiv_rn(second, xd) : __fdiv_rn(xd, second));
  }

  // Codes and scale of the lane's row to its place; plane null: nowhere.
  __device__ __forceinline__ void store(std::uint8_t* plane, int token, int side,
                                        float scale) const {
    if (plane == nullptr) return;
    const int t = threadIdx.x & 3, row = (threadIdx.x & 31) >> 2;
    const DevicePlane order{
        kHeadDim, 2, kHeadDim, false, true, side == 0 ? Side::kKey : Side::kValue, true};
#pragma unroll
    for (int w = t; w < kWords; w += 4) {
      *reinterpret_cast<uint32_t*>(plane + order.trellis_word(token, w)) =
          codes_of_word(words, row * kWords + w);
    }
    if (t == 0) {
      *reinterpret_cast<std::uint16_t*>(plane + order.scale_offset(0, token)) =
          static_cast<std::uint16_t>(__float_as_uint(scale) >> 16);
    }
  }

 private:
  template <typename Quotient>
  __device__ __forceinline__ void put(const Half& v, float threshold, Quotient quotient_of) const {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float clipped = fminf(fmaxf(v[n][e], -threshold), threshold);
        words[word_of(n) * kTrellisStride + channel_of(n, e)] =
            __fadd_rn(quotient_of(clipped), 3.5f);
      }
    }
  }

  // Scales by the general encoder; not inlined, as it is rare.
  static __device__ __noinline__ bool prepare_any(Half& v, const RowRules& rules, bool is_live,
                                                  TrellisScale& scale) {
    const int lane = threadIdx.x & 31, g = lane >> 2;
    bool all_finite = true, is_mine_finite = true;
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
      const int source = 4 * (4 * pass + lane / 8) + lane % 8 / 2;
      RowQuantizer<kTiles, true> quantizer{rules, {}};
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float even = __shfl_sync(~0u, v[n][0], source);
        const float odd = __shfl_sync(~0u, v[n][1], source);
        quantizer.y[n] = lane & 1 ? odd : even;
      }
      const bool is_finite = quantizer.make_finite();
      const bool is_source_live = __shfl_sync(~0u, is_live, source);
      all_finite = all_finite && (is_finite || !is_source_live);
      const float threshold = quantizer.clip_threshold();
      const uint32_t largest = quantizer.largest_magnitude(0, kTiles);
      const float chosen = quantizer.choose_scale(0, kTiles, threshold, largest).scale;
      const int owner = 8 * (g % 4);
      const TrellisScale mine = {__shfl_sync(~0u, chosen, owner),
                                 __shfl_sync(~0u, threshold, owner),
                                 __shfl_sync(~0u, power_of_two_of(largest).inverse, owner)};
      const bool finite = __shfl_sync(~0u, is_finite, owner);
      if (g / 4 != pass) continue;
      scale = mine;
      is_mine_finite = finite;
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      v[n][0] = is_mine_finite ? v[n][0] : 0.0f;
      v[n][1] = is_mine_finite ? v[n][1] : 0.0f;
    }
    return __all_sync(~0u, all_finite);
  }
};

}  // namespace oscar::cuda::encode

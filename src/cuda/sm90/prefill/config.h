// Compile-time shape of the Hopper prefill kernel, and where things lie in its shared memory.
//
// Tiles are operands B of wgmma without swizzling: 8×8 matrices of halves whose rows are tokens
// (keys) or channels (values). Matrices follow one another along k with a gap of 32 bytes, so that
// the four lanes of a token write into different banks.
#pragma once

#include "cuda/attend_params.h"
#include "cuda/attend_units.h"
#include "cuda/trellis_order.h"

namespace oscar::cuda::sm90 {

inline constexpr int kPrefillRows = 128;  // query rows of a block: two groups of four warps

// kTrellis: both sides have trellis codes, 2 bits.
template <int kHeadDim_, int kKeyBits_, int kValueBits_, bool kMean_ = false,
          bool kTrellis_ = false>
struct PrefillConfig {
  static_assert(!kTrellis_ || (kKeyBits_ == 2 && kValueBits_ == 2));
  static constexpr bool kTrellis = kTrellis_;
  static constexpr int kHeadDim = kHeadDim_, kKeyBits = kKeyBits_, kValueBits = kValueBits_;
  static constexpr bool kMean = kMean_;  // adds the key mean as a logit term (mean.cuh)
  static constexpr int kRows = kPrefillRows, kGroupRows = 64;
  static constexpr int kGroupThreads = 128, kConsumers = 2 * kGroupThreads;
  static constexpr int kThreads = kConsumers + kGroupThreads;  // the last group unpacks
  static constexpr int kStages = 2;

  static constexpr int kMatrixBytes = 128 + 32;
  static constexpr int kKeyChunks = kHeadDim / 8;                // matrices of a token along k
  static constexpr int kTokenChunks = kPageTokens / 8;           // matrices of a channel along k
  static constexpr int kKeyRow = kKeyChunks * kMatrixBytes;      // eight tokens
  static constexpr int kValueRow = kTokenChunks * kMatrixBytes;  // eight channels
  static constexpr int kKeyBytes = kPageTokens / 8 * kKeyRow;
  static constexpr int kValueBytes = kHeadDim / 8 * kValueRow;
  // A page's scales and zero points: pairs of floats, keys then values, in the order of columns.
  static constexpr int kScaleBytes = kPageTokens * 8;
  // With the mean: the page's row of the table of turns.
  static constexpr int kTurnBegin = kKeyBytes + kValueBytes + 2 * kScaleBytes;
  static constexpr int kStageBytes = kTurnBegin + (kMean ? kHopperPrefillMeanPairs * 8 : 0);

  static constexpr int kQueryRowBytes = 2 * kHeadDim + 16;     // padded: rows start in other banks
  static constexpr int kCodedQueries = kStages * kStageBytes;  // float16, for codes
  static constexpr int kExactQueries = kCodedQueries + kRows * kQueryRowBytes;  // BF16
  static constexpr int kQuerySums = kExactQueries + kRows * kQueryRowBytes;     // floats
  static constexpr int kMeanTable =
      kQuerySums + kRows * 4;  // [steps of 8 pairs][high, low][matrices]
  static constexpr int kMeanPartBytes = kPageTokens * 16 * 2;
  static constexpr int kMeanCoefficients =
      kMeanTable + (kMean ? kHopperPrefillMeanPairs / 8 * 2 * kMeanPartBytes : 0);
  static constexpr int kMeanStride =
      2 * kHopperPrefillMeanPairs + 8;  // floats a row, the constant behind
  static constexpr int kBarriers = kMeanCoefficients + (kMean ? kRows * kMeanStride * 4 : 0);
  static constexpr int kWords = kBarriers + kStages * 2 * 8;  // largest query, a flag
  static constexpr int kSharedBytes = kWords + 16;
  static_assert(kCodedQueries % 16 == 0 && kBarriers % 8 == 0);
  static_assert(kSharedBytes <= 227 * 1024);

  // Codes lie in their operands where the byte has them, at weight 2^(bits·i) of position i in the
  // byte, as float16 denormals. The query takes a key code's weight, the output a value code's.
  static constexpr int kKeyStep = kKeyBits == 4 ? 4 : 2, kKeysPerByte = 8 / kKeyStep;
  static constexpr int kValuesPerByte = 8 / kValueBits;
  // Position 16m + … of values is code m % kValuesPerByte of its byte, or level m % 2 of trellis
  // codes.
  static constexpr OSCAR_HD int value_shift(int channel) {
    if (kTrellis) return 4 * (channel / 16 % 2);
    return kValueBits * (channel / 16 % kValuesPerByte);
  }
  static OSCAR_HD int value_position(int channel) {
    return kTrellis ? trellis_value_position(kHeadDim, channel) : channel;
  }
};

// Which column of a tile (token of a page) is which: what a lane computes for columns 2t and 2t + 1
// of matrix j is what its operand A of the next product needs, and values are stored 16 bytes a
// lane.
OSCAR_HD int token_of_column(int column) {
  const int j = column / 8, pair = column % 8 / 2;
  return 32 * (j / 4) + 8 * pair + 2 * (j % 4) + column % 2;
}
OSCAR_HD int column_of_token(int token) {
  const int in_eight = token % 8;
  return 8 * (4 * (token / 32) + in_eight / 2) + 2 * (token % 32 / 8) + in_eight % 2;
}

// Keys along k: element `at` of a row is channel `channel`, whose codes have weight 2^shift.
struct KeyElement {
  int channel, shift;
};
template <class C>
OSCAR_HD KeyElement key_element(int at) {
  const int chunk = at / 8, t = chunk % 4, block = chunk / 4, word = at % 8 / 2, u = at % 2;
  if (C::kTrellis) {
    const bool is_narrow = C::kHeadDim == 64;
    const int p = is_narrow ? 2 * block + word / 2 : block % 4, h = is_narrow ? 0 : word / 2;
    const int tile = is_narrow ? 0 : block / 4;
    return {128 * tile + trellis_key_channel(p, h, 2 * u + word % 2, t), 4 * (p & 1)};
  }
  if (C::kHeadDim == 64 && C::kKeyBits != 4) {
    const int i = 2 * block + word / 2, e = word % 2;
    return {8 * (2 * i + u) + 2 * t + e, 2 * i};
  }
  const int i = block % C::kKeysPerByte, tile = block / C::kKeysPerByte;
  const int q = word / 2, e = word % 2;
  return {32 * C::kKeysPerByte * tile + 8 * (2 * q + u + 4 * i) + 2 * t + e, C::kKeyStep * i};
}

}  // namespace oscar::cuda::sm90

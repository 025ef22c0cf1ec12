// Compile-time shape of the Hopper decode kernel: how codes become matrix operands.
#pragma once

#include "cuda/attend_params.h"
#include "cuda/attend_units.h"
#include "cuda/trellis_order.h"

namespace oscar::cuda::sm90 {

// Weights are kept below 2^kWeightLimit and start at 2^kWeightTarget relative to the largest: a
// weight is lost only below 2^−32 of it.
inline constexpr float kWeightTarget = 8.0f;
inline constexpr float kWeightLimit = 14.0f;
inline constexpr float kWeightCeiling = 16384.0f;  // 2^kWeightLimit
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kMasked = -1e30f;
inline constexpr int kScheduleBytes = 96;
inline constexpr int kMeanStepPairs = 8;  // pairs of a matrix instruction

// kHeadTiles: query rows of a block / 4. A tile's 8 columns are 4 heads × {high byte, low byte} of
// a 16-bit query. kTrellis: both sides have trellis codes, 2 bits, not affine.
template <int kHeadDim_, int kKeyBits_, int kValueBits_, bool kAffine_, int kHeadTiles_,
          bool kMean_ = false, bool kTrellis_ = false>
struct DecodeConfig {
  static_assert(!kTrellis_ || (kKeyBits_ == 2 && kValueBits_ == 2 && !kAffine_));
  static constexpr bool kTrellis = kTrellis_;
  static constexpr int kHeadDim = kHeadDim_, kKeyBits = kKeyBits_, kValueBits = kValueBits_;
  static constexpr bool kAffine = kAffine_;
  static constexpr int kHeadTiles = kHeadTiles_, kRows = 4 * kHeadTiles_;
  static constexpr bool kMean = kMean_;  // adds the key mean as a logit term (mean.cuh)
  static constexpr int kMostMeanPairs = kHeadDim / 2;

  static constexpr int kStages = 2;
  // Takes outputs to the raw basis itself (out_transform.cuh); else no register is left for it.
  static constexpr bool kTransformsOut = kHeadDim_ <= 128 && !(kKeyBits_ == 3 && kHeadTiles_ == 2);

  // Chunk: the channels that share a scale at most.
  static constexpr int kChunkDim = kHeadDim < 128 ? kHeadDim : 128, kChunks = kHeadDim / kChunkDim;

  // Keys: bytes of a token in one 16-byte-a-lane tile, and the operands that a byte is masked into.
  static constexpr bool kNarrow = kHeadDim == 64 && kKeyBits != 4;  // 16 bytes a token: k16
  static constexpr int kKeyTileDim = kNarrow ? 64 : kKeyBits == 4 ? 64 : 128;
  static constexpr int kKeyTilesPerChunk = kChunkDim / kKeyTileDim;
  static constexpr int kKeyTiles = kHeadDim / kKeyTileDim;
  static constexpr int kKeyPlanes = kKeyBits == 4 ? 2 : 4;
  static constexpr int kKeyWords =
      kKeyPlanes * (kNarrow ? 1 : 2);  // query words of a lane and tile
  static constexpr int kHighPlanes = kKeyBits != 3 ? 0 : kHeadDim == 64 ? 4 : 8;
  static constexpr int kQueryWords = kKeyWords + kHighPlanes;
  static constexpr int kKeyLowBytes = kPageTokens * kHeadDim / (kKeyBits == 4 ? 2 : 4);
  static constexpr int kKeyCodeBytes =
      kKeyLowBytes + (kKeyBits == 3 ? kPageTokens * kHeadDim / 8 : 0);

  // Values: 16 channels × 8 columns a matrix tile.
  static constexpr int kValueTiles = kHeadDim / 16, kTilesPerChunk = kChunkDim / 16;
  // Bits that a code (a level, of trellis codes) takes in an operand, and how many are in a byte.
  static constexpr int kValueStep = kTrellis ? 4 : kValueBits, kCodesPerByte = 8 / kValueStep;
  static constexpr int kValueCodeBytes = kPageTokens * kHeadDim * kValueBits / 8;
  static constexpr int kMetadataBytes = kPageTokens * (kAffine ? 4 : 2);  // of one group

  // Groups of a side: 1, or one a chunk.
  static OSCAR_HD int groups(const DevicePlane& plane) {
    return kChunks == 1 || plane.group_size == kHeadDim ? 1 : kChunks;
  }
  static OSCAR_HD int key_plane_bytes(const AttendParams& params) {
    return kKeyCodeBytes + groups(params.key) * kMetadataBytes;
  }
  static OSCAR_HD int value_plane_bytes(const AttendParams& params) {
    return kValueCodeBytes + groups(params.value) * kMetadataBytes;
  }

  // Channel of a position of the outputs, which is 16·tile + row of the matrix tile.
  static OSCAR_HD int value_channel(int position) {
    return kTrellis ? trellis_value_channel(kHeadDim, position) : position;
  }

  // Trellis codes: of RaisedLevels.
  static constexpr float kKeyCentre = kTrellis ? 7.5f : ((1 << kKeyBits) - 1) / 2.0f;
  static constexpr float kValueCentre = ((1 << (kTrellis ? 3 : kValueBits)) - 1) / 2.0f;
  // Largest 16-bit query coefficient such that the difference of two neighbouring planes fits
  // ±127·256 + 127.
  static constexpr float kQueryRange = kTrellis ? 30000.0f : kKeyBits == 3 ? 21000.0f : 26000.0f;

  // Shared memory, in order.
  static constexpr int kQueryRowBytes = 2 * kHeadDim + 16;  // padded: rows start in other banks
  static constexpr int kExactRowBytes = 2 * kHeadDim;
  static constexpr int kCodedBytes = kKeyCodeBytes + kValueCodeBytes + 2 * kChunks * kMetadataBytes;
  static constexpr int kExactBytes = 2 * kExactUnit * kExactRowBytes;
  // Behind a page's bytes, with the mean: its row of the table of turns.
  static constexpr int kTurnBegin = kCodedBytes > kExactBytes ? kCodedBytes : kExactBytes;
  static constexpr int kStageBytes = kTurnBegin + (kMean ? kMostMeanPairs * 8 : 0);
  static constexpr int kScratchStride = kHeadDim + 8;
  // Of the table of cosines and sines: a slab's operands, of two slabs, of high and low parts.
  static constexpr int kMeanSlabBytes = 512, kMeanPartBytes = 2 * kMeanSlabBytes;
  static constexpr int kMeanStepBytes = 2 * kMeanPartBytes;
  static constexpr int kMeanTableBytes =
      kMean ? kMostMeanPairs / kMeanStepPairs * kMeanStepBytes : 0;
  // Floats of a row of coefficients: two rows lie in different banks.
  static constexpr int kMeanStride = 2 * kMostMeanPairs + 16;
  static constexpr int kMeanBytes = kMeanTableBytes + (kMean ? 2 * kRows * kMeanStride * 4 : 0);
  // As many warps as memory and registers hold (16 warps: 128 registers a thread).
  static constexpr int kBytesPerWarp = kStages * kStageBytes + kRows * kScratchStride * 4;
  static constexpr int kWarpBytes = 227 * 1024 - 8 * 1024 - kRows * kQueryRowBytes -
                                    kKeyTiles * kHeadTiles * kQueryWords * 32 * 4 - kMeanBytes;
  static constexpr bool kHasManyValues =
      kKeyBits == 3 || (kMean && (kHeadTiles == 2 || kHeadDim != 128 || kKeyBits != 2));
  static constexpr int kMostWarps = kHeadDim == 256 ? 8 : kHasManyValues ? 12 : 16;
  static constexpr int kWarps = kMostWarps * kBytesPerWarp <= kWarpBytes ? kMostWarps
                                : 12 * kBytesPerWarp <= kWarpBytes       ? 12
                                : 8 * kBytesPerWarp <= kWarpBytes        ? 8
                                                                         : 4;
  static constexpr int kThreads = 32 * kWarps;
  // Units of a block after which every warp centres its sums (WarpState::centre): a power of two,
  // eight to sixteen a warp.
  static constexpr int kCentreUnits = kWarps == 12 ? 128 : 8 * kWarps;
  static constexpr int kStagesEnd = kWarps * kStages * kStageBytes;
  static constexpr int kScratchEnd = kStagesEnd + kWarps * kRows * kScratchStride * 4;
  static constexpr int kQueryWordsEnd = kScratchEnd + kKeyTiles * kHeadTiles * kQueryWords * 32 * 4;
  static constexpr int kQueryRowsEnd = kQueryWordsEnd + kRows * kQueryRowBytes;
  // Then floats: max and sum of every (row, warp), scale and code sums of every row; barriers; a
  // flag; the segment; prefix sums of the batch.
  static constexpr int kMeanBegin = kQueryRowsEnd;  // 16-byte aligned
  static constexpr int kMeanEnd = kMeanBegin + kMeanBytes;
  static constexpr int kStatesEnd = kMeanEnd + 2 * kRows * 16 * 4;
  static constexpr int kRowScalesEnd = kStatesEnd + kRows * (2 + kChunks) * 4;
  static constexpr int kBarriersEnd = kRowScalesEnd + kWarps * kStages * 8;
  static constexpr int kSegmentBegin = kBarriersEnd + 16;
  static constexpr int kSchedulesBegin = kSegmentBegin + 128;
  static constexpr int kPrefixBegin = kSchedulesBegin + kWarps * kScheduleBytes;
  static_assert(kMeanBegin % 16 == 0 && kMeanEnd % 16 == 0);
  static_assert(kStageBytes % 16 == 0 && kScratchEnd % 16 == 0 && kRowScalesEnd % 8 == 0);

  static constexpr int shared_bytes(int num_seqs) { return kPrefixBegin + 4 * (num_seqs + 1); }
};

}  // namespace oscar::cuda::sm90

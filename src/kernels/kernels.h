// The CPU operations on rows, codes and tiles: one set per instruction set, from one list.
//
// The codec operations (transform_rows, encode_rows, decode_rows) give the same bytes in every set:
// each output is one fixed sequence of IEEE single-precision additions and multiplications, without
// contraction; so do the integer attention operations (quantize_queries, qk_integer, pv_integer).
// The other attention operations may sum in any order; attention is judged against fp64.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/bf16.h"
#include "format/plane_layout.h"

namespace oscar::kernels {

// y[row][j] = Σ_i x[row][i]·matrix[i][j], summed over i ascending from 0, mul then add, each
// rounded. Strides in floats. y may not overlap x.
struct TransformParams {
  const float* x;       // [num_rows][head_dim], row stride x_stride
  const float* matrix;  // [head_dim][head_dim]
  float* y;             // [num_rows][head_dim], row stride y_stride
  std::int64_t num_rows;
  std::int64_t x_stride, y_stride;
  int head_dim;
};

// Encodes rotated rows (mean already subtracted). Row r goes to token_in_page[r] of planes[r].
//
// Per row: clip_ratio < 1 clips magnitudes at the ⌈clip_ratio·head_dim⌉-th smallest magnitude of
// the row. Per group, with levels = 2^bits − 1:
//   kAffine:    scale = (max − min)/levels, zero_point = −min/scale (by the rounded scale), both
//   BF16 *before*
//               the codes are chosen; code = clamp(round_half_even(x/scale + zero_point), 0,
//               levels). A constant group stores scale = |x| (x > 0: zero_point −1, code 0; x < 0:
//               zero_point 1, code 0; 0: scale 0), so that it decodes to BF16(x).
//   kSymmetric: scale = step(bits)·rms, step = the uniform step that is optimal for a Gaussian
//               (0.9957, 0.5860, 0.3352), BF16;
//               code = clamp(round_half_even(x/scale + levels/2), 0, levels).
//   kTrellis:   2 bits only; scale = 0.5·rms, BF16; the codes of each sixteen channels are the path
//               whose levels lie nearest to x/scale + 3.5 (trellis_search.h).
// then ScaleFit replaces the stored scale by BF16(scale·fit), with x the *unclipped* row; a fit
// that is not finite or ≤ 0 is dropped. Sums over a group run in eight lanes (lane = channel mod
// 8), then ((0+4)+(2+6))+((1+5)+(3+7)). Rows holding NaN or Inf return false for the batch, and the
// rows that hold them are encoded as rows of zeros.
//
// Far from ordinary activations: magnitudes above 2^120 count as 2^120 and scales saturate there,
// so that nothing decodes to Inf (16 bits: at the largest BF16); a scale that rounds to zero makes
// the group zero (zero point 0, codes as for x = 0); sums of squares are taken of x·2^−e, e the
// exponent of the group's largest magnitude, so that none overflows or vanishes.
struct EncodeParams {
  const float* y;                     // [num_rows][head_dim], row stride y_stride (floats)
  std::uint8_t* const* planes;        // [num_rows] plane of the row's page; nullptr: skip the row
  const std::int32_t* token_in_page;  // [num_rows] 0..63
  std::int64_t num_rows;
  std::int64_t y_stride;
  PlaneLayout layout;
  float clip_ratio;  // (0, 1]
};

// Decodes tokens [first, first + num_tokens) of a plane to floats (for 16 bits: the BF16 rows).
struct DecodeParams {
  const std::uint8_t* plane;
  float* rows;  // [num_tokens][head_dim], row stride row_stride (floats)
  std::int64_t row_stride;
  int first, num_tokens;
  PlaneLayout layout;
};

// logits[r][t] = Σ_d q[r][d]·k[t][d]  (kAccumulate: added to what is there)
struct DotTileParams {
  const float* q;  // [num_rows][head_dim], stride q_stride
  const float* k;  // [num_tokens][head_dim], stride k_stride
  float* logits;   // [num_rows][num_tokens], stride logits_stride
  int num_rows, num_tokens, head_dim;
  std::int64_t q_stride, k_stride, logits_stride;
  bool accumulate;
};

// out[r][d] += Σ_t p[r][t]·v[t][d]. No weight is skipped: a NaN in v reaches the output even where
// p is 0, so callers pass written tokens only.
struct AccumulateTileParams {
  const float* p;  // [num_rows][num_tokens], stride p_stride
  const float* v;  // [num_tokens][head_dim], stride v_stride
  float* out;      // [num_rows][head_dim], stride out_stride
  int num_rows, num_tokens, head_dim;
  std::int64_t p_stride, v_stride, out_stride;
};

// One online-softmax step for each row: m' = max(m, max_t logit), p = exp(logit − m') in place (0
// where the logit is −inf), l = l·exp(m − m') + Σp, m = m', and rescale[r] = exp(m_old − m') (1
// where nothing was attended yet: m' = −inf).
struct SoftmaxTileParams {
  float*
      logits;  // [num_rows][num_tokens], stride logits_stride; in: natural-log logits, out: weights
  float* max;  // [num_rows] running m
  float* sum;  // [num_rows] running l
  float* rescale;  // [num_rows] out
  int num_rows, num_tokens;
  std::int64_t logits_stride;
};

// Attention straight on the codes of one page in single precision, few rows at best (the query
// heads of one KV head, 1..16), or on a page of BF16 rows (16 bits), any number of rows.
// logits[r][t] = scale_t·(Σ_d q[r][d]·(code − zero)) for t in [0, num_tokens); q in the rotated
// basis. A token that was never written gives any logit, NaN included, and disturbs no other.
struct QkCodesParams {
  const float* q;  // [num_rows][head_dim], stride q_stride
  const std::uint8_t* plane;
  float* logits;  // [num_rows][num_tokens], stride logits_stride
  int num_rows, num_tokens;
  std::int64_t q_stride, logits_stride;
  PlaneLayout layout;
  // The plane of the same layout that is used next: prefetched meanwhile. Null: none.
  const std::uint8_t* next_plane = nullptr;
  // 16 bits only: from row to row; 0: the layout's. Another one needs whole pages.
  std::int64_t row_stride_bytes = 0;
};

// out[r][d] += Σ_t p[r][t]·v̂[t][d] straight on the codes of one page, rotated basis. A token whose
// weight is 0 contributes nothing, even if it was never written.
struct PvCodesParams {
  const float* p;  // [num_rows][num_tokens], stride p_stride
  const std::uint8_t* plane;
  float* out;  // [num_rows][head_dim], stride out_stride
  int num_rows, num_tokens;
  std::int64_t p_stride, out_stride;
  PlaneLayout layout;
  const std::uint8_t* next_plane = nullptr;  // as in QkCodesParams
  std::int64_t row_stride_bytes = 0;         // as in QkCodesParams
};

// The integer path. Query rows in 16 bits: group by group of channels, q ≈ scale·code with code in
// [−32639, 32639] and scale = largest magnitude/32639, code = 256·high + low in two signed bytes,
// in the order of quantize_queries.h. A group that holds NaN or Inf gets scale NaN; magnitudes
// below 2^-100 count as zero.
struct QuantizeQueriesParams {
  const float* q;  // [num_rows][head_dim] rotated, row stride q_stride
  std::int64_t num_rows;
  std::int64_t q_stride;
  PlaneLayout layout;  // of the keys, 2 to 4 bits
  std::int8_t* bytes;  // [head_dim/4][num_rows][high 4, low 4]
  float* scales;       // [num_rows][num_groups]
  float* sums;         // [num_rows][num_groups] Σ code
};

// As QkCodesParams, for any number of rows and 2 to 4 bits; the logits are those of the rounded
// rows. Sums of products are exact, and the same logits to the last bit come from every set.
struct QkIntegerParams {
  const std::int8_t* q;   // as QuantizeQueriesParams leaves them
  const float* q_scales;  // [num_rows][num_groups]
  const float* q_sums;    // [num_rows][num_groups]
  const std::uint8_t* plane;
  float* logits;  // [num_rows][num_tokens], stride logits_stride
  int num_rows, num_tokens;
  std::int64_t logits_stride;
  PlaneLayout layout;
  const std::uint8_t* next_plane = nullptr;  // as in QkCodesParams
};

// As PvCodesParams, for any number of rows and 2 to 4 bits; p in [0, 1]. Of each row and group the
// products p·scale are rounded to multiples of their largest/65535; products below 2^-100 count as
// zero. The same output to the last bit comes from every set.
typedef PvCodesParams PvIntegerParams;

// logits[r][t] += constants[r] + Σ_f A_f·cos(w_f·(t − 31.5)) + B_f·sin(w_f·(t − 31.5)) for t in
// [0, 64), by the functions of cache/rope_basis.h: fast pairs have two columns each, slow ones
// share polynomials.
inline constexpr int kMeanPolynomials = 16;
// Floats of a row of pairs: [2·place] A, [2·place + 1] B, fast pairs first, then slow ones in
// blocks of 1, 2, 4 and 8; what is over when blocks are filled up is padding.
inline constexpr int kMeanPairFloats = kMaxHeadDim + 2 * kMeanPolynomials;
struct MeanTileParams {
  const float* pairs;      // [num_rows][kMeanPairFloats] about the middle of a tile at position 0
  const float* constants;  // [num_rows]
  // [2][kMeanPairFloats] the turn to the tile: (cos, cos) of every pair, then (sin, −sin); turned
  // further by `step`, of the same layout, before it is used. Null: it stays.
  float* turn;
  const float* step;
  const float* series;   // [block][kMeanPolynomials] coefficients of slow pairs
  const float* columns;  // [num_fast + kMeanPolynomials/2][even, odd][32] for t in [32, 64)
  float* logits;         // [num_rows][64], stride logits_stride
  int num_rows, num_fast;
  const int* num_blocks;  // [4] of 1, 2, 4, 8 slow pairs
  std::int64_t logits_stride;
};

struct KernelSet {
  const char* name;     // "scalar", "avx2", "avx512", "avx512vnni", ...
  const char* needs;    // the CPU features it needs, for people
  bool (*supported)();  // on this machine
  void (*transform_rows)(const TransformParams&) noexcept;
  bool (*encode_rows)(const EncodeParams&) noexcept;  // false: some row held NaN or Inf
  void (*decode_rows)(const DecodeParams&) noexcept;
  void (*dot_tile)(const DotTileParams&) noexcept;
  void (*accumulate_tile)(const AccumulateTileParams&) noexcept;
  void (*softmax_tile)(const SoftmaxTileParams&) noexcept;
  void (*qk_codes)(const QkCodesParams&) noexcept;
  void (*pv_codes)(const PvCodesParams&) noexcept;
  void (*quantize_queries)(const QuantizeQueriesParams&) noexcept;
  void (*qk_integer)(const QkIntegerParams&) noexcept;
  void (*pv_integer)(const PvIntegerParams&) noexcept;
  void (*mean_tile)(const MeanTileParams&) noexcept;
};

// All sets compiled in, best first; the last is "scalar".
std::span<const KernelSet* const> all_kernel_sets();

// The set to use: the one that OSCAR_CPU names, else the best that this machine supports. Throws
// Error(kUnsupported) when OSCAR_CPU names one that is unknown or not supported here, listing those
// that are.
const KernelSet& selected_kernel_set();
const KernelSet& kernel_set_by_name(const std::string& name);

}  // namespace oscar::kernels

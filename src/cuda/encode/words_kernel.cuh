// Rows to pages of 2-bit codes for many tokens that are rotated already: a warp takes sixteen rows
// at a time, in BF16 (word_rows.cuh). docs/kernels/cuda-encode.md counts the instructions.
#pragma once

#include "cuda/encode/fragments.h"
#include "cuda/encode/packed_kernel.cuh"
#include "cuda/encode/word_rows.cuh"

namespace oscar::cuda::encode {

// Codes of a warp's rows, and what is stored of the own row.
template <int kHalves>
struct FittedRows {
  RowBytes rows[kHalves];
  uint32_t scale_zero;
};

// The codes of rows and their fitted scales: sums over rows and codes in float32, one half at a
// time, as registers are scarce. scale: of the own row.
template <int kHeadDim, int kHalves, typename Load>
__device__ __forceinline__ FittedRows<kHalves> fit_words(int side, const RowRules& rules,
                                                         const RowScale& scale, Load load) {
  constexpr int kTiles = kHeadDim / 8;
  FittedRows<kHalves> fitted = {};
#pragma unroll 1
  for (int h = 0; h < kHalves; ++h) {
    RowFragment<kTiles> half;
    load(h, half);
    const int owner = (threadIdx.x & 28) + (kHalves == 2 ? h : 0);
    RowScale s;
    s.scale = __shfl_sync(~0u, scale.scale, owner);
    s.zero = __shfl_sync(~0u, scale.zero, owner);
    s.inverse = __shfl_sync(~0u, scale.inverse, owner);
    s.top = __shfl_sync(~0u, scale.top, owner);
    CodeFragment<kTiles> codes;
    const uint32_t stored = choose_codes<kTiles>(half, rules, s, codes);
    if (kHalves == 1 || (threadIdx.x & 1) == h) fitted.scale_zero = stored;
    if constexpr (kHalves == 2) fitted.rows[0] = fitted.rows[1];
    fitted.rows[kHalves - 1] = pack_row<kHeadDim>(codes, side, 2);
  }
  return fitted;
}

// Codes and stored scales of a warp's rows. get(r, pair): words in the order of
// codes (coded_tile); load(h, half): row h in float32. Of the own row: what is stored, and whether
// the general encoder must take it (store_packed). All lanes take part.
template <int kHeadDim, int kHalves, int kSide, typename Get, typename Load>
__device__ __forceinline__ void encode_words(Get get, const RowRules& rules, const RankGuess& guess,
                                             bool is_live, Load load, RowBytes (&rows)[kHalves],
                                             uint32_t& scale_zero, bool& is_odd) {
  constexpr int kTiles = kHeadDim / 8;
  WordRows<kTiles, kHalves> words;
  const float threshold = words.clip_threshold(get, guess, rules.affine, is_live);
  RowScale scale = words.choose_scale(get, rules, threshold, load);
  if (rules.fit == ScaleFit::kPlain) {
    is_odd = is_live && !scale.is_ordinary;
    scale_zero = __float_as_uint(scale.scale) >> 16 | (__float_as_uint(scale.zero) & 0xffff0000u);
    words.template choose_bytes<kSide>(get, scale, threshold, rows);
    return;
  }
  set_bounds(scale, 3, threshold);
  is_odd = is_live && !scale.is_ordinary;
  const FittedRows<kHalves> fitted =
      apart<kHalves>([=] { return fit_words<kHeadDim, kHalves>(kSide, rules, scale, load); });
  scale_zero = fitted.scale_zero;
#pragma unroll
  for (int h = 0; h < kHalves; ++h) rows[h] = fitted.rows[h];
}

// Sixteen rows in shared memory, a warp's own. Between rows lie sixteen bytes, so that no two rows'
// pieces meet in a bank.
template <int kHeadDim>
struct WordTile {
  static constexpr int kTiles = kHeadDim / 8, kRowBytes = 2 * kHeadDim + 16;
  static constexpr int kBytes = kSlab * kRowBytes;
  uint32_t address;

  // Row g + 8h of a lane: `from` is its first piece of 16 bytes. Not there: zeros instead.
  __device__ __forceinline__ void fetch(int h, const bf16_t* from, bool is_there) const {
    const int lane = threadIdx.x & 31;
    const uint32_t to = address + (lane >> 2) * kRowBytes + (lane & 3) * 16;
#pragma unroll
    for (int j = 0; j < kHeadDim / 32; ++j) {
      ptx::copy_async_16(to + h * 8 * kRowBytes + 64 * j, from + 32 * j, is_there ? 16 : 0);
    }
  }
  // Words r and r + 1 of both halves in the order of codes, r even.
  template <int kSide>
  __device__ __forceinline__ void words(int r, uint32_t (&pair)[2][2]) const {
    const int lane = threadIdx.x & 31;
    const uint32_t from = address + (lane & 15) * kRowBytes + (lane >> 4) * 16;
    const uint4 x = ptx::load_matrix_x4(from + 16 * coded_tile<kTiles>(r, kSide));
    pair[0][0] = x.x;
    pair[1][0] = x.y;
    pair[0][1] = x.z;
    pair[1][1] = x.w;
  }
  // Row g + 8h in float32.
  __device__ __forceinline__ void operator()(int h, RowFragment<kTiles>& half) const {
    const int lane = threadIdx.x & 31;
    const uint32_t row = address + (8 * h + (lane >> 2)) * kRowBytes + (lane & 3) * 4;
    widen_row(half, [=](int n) { return ptx::load_shared_4(row + 16 * n); });
  }
};

// Exact copies of a tile's rows, from token `first` on.
template <int kHeadDim>
__device__ __forceinline__ void copy_tile(const EncodeParams& params, WordTile<kHeadDim> tile,
                                          int first) {
  const TileJob job = job_of_block(params);
  int tokens[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    tokens[h] = first + 8 * h + static_cast<int>((threadIdx.x & 31) >> 2);
    if (tokens[h] >= params.num_tokens) tokens[h] = -1;
  }
  std::int64_t copies[2];
  copy_slots_of<2>(params, job.side_index, tokens, copies);
  if (!any_copy<2>(copies)) return;
  RowFragments<kHeadDim / 8, 2> v;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    RowFragment<kHeadDim / 8> half;
    tile(h, half);
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      v[n][2 * h] = half[n][0];
      v[n][2 * h + 1] = half[n][1];
    }
  }
  copy_rows<kHeadDim, 2>(v, job, copies);
}

inline constexpr int kWordThreads = 128;
// Of a multiprocessor at a time: 128 registers a thread, and 168 where that was not tried.
inline constexpr int kWordBlocks = kThisCapability == 90 ? 4 : 3;
// Blocks for every place: the first to end make room, so that all multiprocessors end together.
inline constexpr int kWordWaves = 8;
template <int kHeadDim>
inline constexpr int kWordBlockBytes = kWordThreads / 32 * 2 * WordTile<kHeadDim>::kBytes;

// Codes of a tile, to its place. slot: of the own row.
template <int kHeadDim, int kSide>
__device__ __forceinline__ void encode_tile(const EncodeParams& params, WordTile<kHeadDim> tile,
                                            std::int64_t slot, RankGuess guess, ScaleFit fit,
                                            SlabPlace<kHeadDim> place) {
  RowBytes rows[2] = {};
  uint32_t scale_zero;
  bool is_odd;
  const RowRules rules{2, kHeadDim, kHeadDim, place.affine, fit, 0.0f};
  encode_words<kHeadDim, 2, kSide>(
      [&](int r, uint32_t(&pair)[2][2]) { tile.template words<kSide>(r, pair); }, rules, guess,
      slot >= 0, tile, rows, scale_zero, is_odd);
  if (!place.store(kSide, slot, rows, scale_zero, is_odd)) {
    called([=, &params] {
      const TileJob job = job_of_block(params);
      const RowBytes both[2] = {rows[0], rows[1]};
      store_any<kHeadDim>(job, rules_of(job, false), tile, both, slot, scale_zero, is_odd);
    });
  }
}

// One side's rows.
template <int kHeadDim, int kSide>
__device__ __forceinline__ void encode_words_of(const EncodeParams& params, uint32_t shared) {
  constexpr int kWarps = kWordThreads / 32;
  using Tile = WordTile<kHeadDim>;
  const TileJob job{params, params.sides[kSide], static_cast<int>(blockIdx.y), kSide, 0, 0};
  if (job.side.rows == nullptr) return;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const uint32_t tiles = shared + warp * 2 * Tile::kBytes;
  Tile raw{tiles};
  const RankGuess guess = RankGuess::of(job.side.clip_ratio[job.head], kHeadDim);
  const SlabPlace<kHeadDim> place = SlabPlace<kHeadDim>::of(job, lane);
  const std::int64_t first_slot = params.slots[0];
  const int shift = first_slot < 0 ? 0 : static_cast<int>(first_slot % kSlab);
  const int num_tokens = static_cast<int>(params.num_tokens);
  const int step = gridDim.x * kWarps * kSlab;
  auto walk = TileWalk<kHeadDim>::from(job, (blockIdx.x * kWarps + warp) * kSlab - shift, lane);
  const auto take = [&](const Tile& to) {
    return walk.take(
        job, step, [&](int h, const bf16_t* from, bool is_there) { to.fetch(h, from, is_there); });
  };
  bool has_next = walk.next < num_tokens;
  std::int64_t next_slot = -1;
  if (has_next) next_slot = take(raw);
#pragma unroll 1
  while (has_next) {
    const std::int64_t slot = next_slot;
    ptx::copy_async_wait();
    __syncwarp();
    const Tile other{2 * tiles + Tile::kBytes - raw.address};
    if (params.copies != nullptr) {
      called([raw, &params, first = walk.next - step] { copy_tile<kHeadDim>(params, raw, first); });
    }
    // The next rows and slots come while these are encoded.
    has_next = walk.next < num_tokens;
    if (has_next) next_slot = take(other);
    encode_tile<kHeadDim, kSide>(params, raw, slot, guess, job.side.scale_fit, place);
    __syncwarp();  // all lanes have read what is fetched next overwrites
    raw = other;
  }
}

// Tiles begin at the first token's slab, so that consecutive slots fill whole slabs. grid: (blocks,
// heads, sides).
template <int kHeadDim>
__global__ void __launch_bounds__(kWordThreads, kWordBlocks)
    encode_words_kernel(const __grid_constant__ EncodeParams params) {
  extern __shared__ __align__(16) std::uint8_t shared[];
  if (blockIdx.z == 0) {
    encode_words_of<kHeadDim, 0>(params, ptx::shared_address(shared));
  } else {
    encode_words_of<kHeadDim, 1>(params, ptx::shared_address(shared));
  }
}

}  // namespace oscar::cuda::encode

// Rows to pages of 2-bit codes for many tokens: a warp takes sixteen rows at a time, as pairs of
// float16 (packed_rows.cuh). docs/kernels/cuda-encode.md counts the instructions.
#pragma once

#include <type_traits>

#include "cuda/encode/fragments.h"
#include "cuda/encode/packed_rows.cuh"
#include "cuda/encode/row_job.cuh"

namespace oscar::cuda::encode {

// Codes and stored scales of a warp's rows. v: in float32, or as pairs of BF16. load(h, half): row
// h in float32, again. is_odd: rows that the general encoder must take (store_packed). All lanes
// take part.
template <int kHeadDim, int kHalves, typename Rows, typename Load>
__device__ __forceinline__ void encode_packed(const Rows& v, int side, const RowRules& rules,
                                              const RankGuess& guess,
                                              const bool (&is_live)[kHalves], Load load,
                                              RowBytes (&rows)[kHalves],
                                              uint32_t (&scale_zero)[kHalves],
                                              bool (&is_odd)[kHalves]) {
  constexpr int kTiles = kHeadDim / 8;
  using Packed = PackedRows<kTiles, kHalves>;
  constexpr bool kIsExact = !std::is_same_v<Rows, RowFragments<kTiles, kHalves>>;
  Packed packed;
  packed.load(v);
  const bool is_own_live = own_of<kHalves>(is_live);
  float threshold = __uint_as_float(0x7f800000u);
  if (guess.rank < kHeadDim) {
    const typename Packed::Statistic found = packed.order_statistic(guess, is_own_live);
    threshold = kIsExact ? ptx::float_from_f16(found.key) : packed.exact_statistic(found, load);
  }
  RowScale scale = packed.choose_scale(rules, threshold, load);
  const auto store_scale = [&](float value) {
    const uint32_t stored =
        __float_as_uint(value) >> 16 | (__float_as_uint(scale.zero) & 0xffff0000u);
    to_halves<kHalves>(stored, scale_zero);
  };
  if (!kIsExact || rules.fit == ScaleFit::kPlain) {
    to_halves<kHalves>(is_own_live && !packed.is_fine, is_odd);
  }
  if constexpr (kIsExact) {
    if (rules.fit == ScaleFit::kPlain) {
      store_scale(scale.scale * packed.inverse_factor);
      packed.choose_bytes(scale, threshold, side, rows);
      return;
    }
  }
  // From here on in the units of the rows.
  scale.scale *= packed.inverse_factor;
  scale.inverse *= packed.factor;
  if constexpr (!kIsExact) {
    const float fitted =
        packed.level_bytes(scale, rules.fit, threshold * packed.inverse_factor, side, load, rows);
    store_scale(round_to_bf16(fitted));
    return;
  }
  // A fitted scale is a sum over rows and codes in float32: one half at a time, as registers are
  // scarce.
  set_bounds(scale, 3, fminf(threshold * packed.inverse_factor, 0x1p120f));
  to_halves<kHalves>(is_own_live && !scale.is_ordinary, is_odd);
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
    if constexpr (kHalves == 2) {
      rows[0] = rows[1];
      scale_zero[0] = scale_zero[1];
    }
    scale_zero[kHalves - 1] = choose_codes<kTiles>(half, rules, s, codes);
    rows[kHalves - 1] = pack_row<kHeadDim>(codes, side, 2);
  }
}

// Stores a warp's rows, and encodes and stores those that are out of the ordinary.
template <int kHeadDim, int kHalves, typename Load>
__device__ __forceinline__ void store_packed(const TileJob& job, const RowRules& rules,
                                             const std::int64_t (&slots)[kHalves], Load load,
                                             const RowBytes (&rows)[kHalves],
                                             const uint32_t (&scale_zero)[kHalves],
                                             const bool (&is_odd)[kHalves]) {
  constexpr int kTiles = kHeadDim / 8;
  // Known sizes: no divisions.
  const DevicePlane plane{kHeadDim, 2, kHeadDim, rules.affine, true, job.side.plane.side};
  {
    std::int64_t ordinary[kHalves];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) ordinary[h] = is_odd[h] ? -1 : slots[h];
    const RowPlaces<kHalves> places = places_of<kHalves>(job, ordinary);
    store_rows<kHeadDim, 2, kHalves>(rows, job.side_index, places);
    store_scales<kHalves>(plane, places, scale_zero);
  }
  if (!__any_sync(~0u, is_odd[0] || is_odd[kHalves - 1])) return;
#pragma unroll 1
  for (int h = 0; h < kHalves; ++h) {
    const bool is_mine = h ? is_odd[kHalves - 1] : is_odd[0];
    RowFragment<kTiles> half;
    load(h, half);
    CodeFragment<kTiles> codes;
    uint32_t stored[1] = {0};
    if (!encode_any_rows<kTiles>(half, rules, is_mine, codes, stored[0]) &&
        job.params.non_finite != nullptr) {
      *job.params.non_finite = 1;
    }
    const RowBytes bytes[1] = {pack_row<kHeadDim>(codes, job.side_index, 2)};
    const std::int64_t odd[1] = {is_mine ? (h ? slots[kHalves - 1] : slots[0]) : -1};
    const RowPlaces<1> places = places_of<1>(job, odd);
    store_rows<kHeadDim, 2, 1>(bytes, job.side_index, places);
    store_scales<1>(plane, places, stored);
  }
}

// What a warp has in shared memory. Rotated rows: two tiles. Others: a tile, and its rows in
// float32 or, before, what BF16 leaves of rows less the mean; then a page's mean.
template <int kHeadDim, Source kSource>
inline constexpr int kPackedWarpBytes =
    (kSource == Source::kRotated ? 2 : 3) * kSlab* kHeadDim * 2 +
    (kSource == Source::kLessMean ? SlabMeans<kHeadDim>::kWarpBytes : 0);
// What a block has behind its warps' and the image.
template <int kHeadDim, Source kSource>
inline constexpr int kPackedTableBytes =
    kSource == Source::kLessMean ? SlabMeans<kHeadDim>::kTableBytes : 0;
// At most: 168 registers a thread.
inline constexpr int kPackedThreads = 384;
// Cards of compute capability 12 have shared memory for two warps beside an image of heads of 128:
// there the compiler needs more registers for rows less a mean, and may have them.
inline constexpr int kFewPackedThreads = 256, kFewThreadsCapability = 120;
template <int kHeadDim, Source kSource>
constexpr int packed_threads(int compute_capability) {
  const bool is_few = kHeadDim == 128 && kSource == Source::kLessMean;
  return is_few && compute_capability >= kFewThreadsCapability ? kFewPackedThreads : kPackedThreads;
}
#ifdef __CUDA_ARCH__
inline constexpr int kThisCapability = __CUDA_ARCH__ / 10;
#else
inline constexpr int kThisCapability = 0;
#endif

// Rows in float32 in shared memory, sixteen bytes a lane at a time.
template <int kTiles>
struct SpareRows {
  uint32_t address;  // of this lane

  __device__ __forceinline__ void keep(const RowFragments<kTiles, 2>& v) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        ptx::store_shared_16(
            address + (h * kTiles / 2 + n / 2) * 512,
            {__float_as_uint(v[n][2 * h]), __float_as_uint(v[n][2 * h + 1]),
             __float_as_uint(v[n + 1][2 * h]), __float_as_uint(v[n + 1][2 * h + 1])});
      }
    }
  }
  __device__ __forceinline__ void load(int h, RowFragment<kTiles>& half) const {
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      const uint4 x = ptx::load_shared_16(address + (h * kTiles / 2 + n / 2) * 512);
      half[n][0] = __uint_as_float(x.x);
      half[n][1] = __uint_as_float(x.y);
      half[n + 1][0] = __uint_as_float(x.z);
      half[n + 1][1] = __uint_as_float(x.w);
    }
  }
};

// Of a block whose tiles are one quarter of every page, in the kernel below. mean, table: addresses
// of kWarpBytes of the warp's, kTableBytes of the block's.
template <int kHeadDim>
__device__ __forceinline__ SlabMeans<kHeadDim> slab_means(const TileJob& job, uint32_t mean,
                                                          uint32_t table) {
  const EncodeParams& p = job.params;
  if (job.side_index != 0 || 2 * p.num_pairs != kHeadDim || p.interleaved) return {0, 0, -1};
  const std::int64_t slot = p.slots[0];
  const int begin = p.positions[0] - (slot < 0 ? 0 : static_cast<int>(slot % kSlab));
  const int first = (begin + kSlab * static_cast<int>(blockIdx.x)) & (kPageTokens - 1);
  return {table, mean, first % kSlab == 0 ? first : -1};
}

// Tiles begin at the first token's slab, so that consecutive slots fill whole slabs. The
// transform's image lies behind the rows in shared memory. kProduct: how rows are multiplied by it;
// where its kTogether is true, groups of four warps walk their tiles together. grid: (blocks,
// heads, sides).
template <int kHeadDim, Source kSource, typename Product>
__global__ void __launch_bounds__((packed_threads<kHeadDim, kSource>(kThisCapability)), 1)
    encode_packed_kernel(const __grid_constant__ EncodeParams params) {
  extern __shared__ __align__(16) std::uint8_t shared[];
  constexpr int kTiles = kHeadDim / 8, kTileBytes = kSlab * kHeadDim * 2;
  constexpr bool kRotated = kSource == Source::kRotated, kMean = kSource == Source::kLessMean;
  const int side_index = blockIdx.z;
  const TileJob job{params, params.sides[side_index], static_cast<int>(blockIdx.y), side_index, 0,
                    0};
  if (job.side.rows == nullptr) return;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2;
  const int num_warps = blockDim.x >> 5;
  std::uint8_t* parts = shared + num_warps * kPackedWarpBytes<kHeadDim, kSource>;
  const uint32_t first_tile =
      ptx::shared_address(shared) + warp * kPackedWarpBytes<kHeadDim, kSource>;
  TileRows<kHeadDim> raw{first_tile, first_tile + kTileBytes};
  const SpareRows<kTiles> spare{first_tile + kTileBytes + 16 * lane};
  TransformHead head{1.0f, 1, {}};
  SlabMeans<kHeadDim> means{0, 0, -1};
  // One or two parts of the image.
  const auto image = [&] {
    return reinterpret_cast<const uint4*>(
        static_cast<const std::uint8_t*>(job.side.transform_image) +
        job.head * transform_head_bytes(kHeadDim) + sizeof(TransformHead));
  };
  if constexpr (!kRotated) {
    head = reinterpret_cast<const TransformHead*>(image())[-1];
    const int count = head.num_parts * static_cast<int>(transform_part_bytes(kHeadDim) / 16);
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      Product::template put<kHeadDim>(parts, i, image()[i]);
    }
    Product::written();
    if constexpr (kMean) {
      means = slab_means<kHeadDim>(
          job, first_tile + 3 * kTileBytes,
          ptx::shared_address(parts) + kTransformParts * 2 * kHeadDim * kHeadDim);
      if (means.first >= 0) means.build_table(params);
    }
    __syncthreads();
  }
  const RowRules rules = rules_of(job, false);
  const RankGuess guess = RankGuess::of(rules.clip_ratio, kHeadDim);
  const std::int64_t first_slot = params.slots[0];
  const int shift = first_slot < 0 ? 0 : static_cast<int>(first_slot % kSlab);
  const int num_tokens = static_cast<int>(params.num_tokens);
  const int num_tiles = (num_tokens + shift + kSlab - 1) / kSlab;
  const auto tokens_of = [&](int tile, int(&tokens)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      tokens[h] = tile * kSlab - shift + 8 * h + g;
      if (tokens[h] >= num_tokens) tokens[h] = -1;  // before the first: negative already
    }
  };
  const auto slots_of = [&](const int(&tokens)[2], std::int64_t(&slots)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) slots[h] = tokens[h] < 0 ? -1 : params.slots[tokens[h]];
  };
  const int step = gridDim.x * num_warps;
  [[maybe_unused]] const bool is_static = side_index != 0 || params.num_pairs == 0;
  // With a mean, a block's tiles are one quarter of every page (the number of blocks is a multiple
  // of four): sixteen rows of cosines serve them all.
  const int between = kMean ? static_cast<int>(gridDim.x) : 1;
  int tile = kMean ? blockIdx.x + warp * between : blockIdx.x * num_warps + warp;
  // Tiles of a group of warps that walks together end when its first does.
  const int ahead = Product::kTogether ? warp % 4 * between : 0;
  int tokens[2];
  std::int64_t next_slots[2] = {-1, -1};
  tokens_of(tile, tokens);
  if (tile - ahead < num_tiles) {
    raw.fetch(job, tokens);
    slots_of(tokens, next_slots);
  }
#pragma unroll 1
  for (; tile - ahead < num_tiles; tile += step) {
    tokens_of(tile, tokens);
    const std::int64_t slots[2] = {next_slots[0], next_slots[1]};
    const bool is_live[2] = {slots[0] >= 0, slots[1] >= 0};
    std::int64_t copies[2];
    copy_slots_of<2>(params, tokens, copies);
    const bool has_copies = any_copy<2>(copies);
    raw.wait();
    // The next rows and slots come while these are encoded.
    const auto fetch_next = [&](uint32_t at) {
      if (tile + step - ahead >= num_tiles) return;
      int next[2];
      tokens_of(tile + step, next);
      TileRows<kHeadDim>{at, 0}.fetch(job, next);
      slots_of(next, next_slots);
    };
    RowBytes rows[2] = {};
    uint32_t scale_zero[2];
    bool is_odd[2];
    if constexpr (kRotated) {
      const uint32_t other = first_tile + (raw.values == first_tile ? kTileBytes : 0);
      fetch_next(other);
      const auto load = [&](int h, RowFragment<kTiles>& half) { raw.widen(h, half); };
      if (has_copies) {
        RowFragments<kTiles, 2> v;
        raw.widen(v);
        copy_rows<kHeadDim, 2>(v, job, copies);
      }
      RowWords<kTiles, 2> words;
      raw.words(words);
      encode_packed<kHeadDim, 2>(words, side_index, rules, guess, is_live, load, rows, scale_zero,
                                 is_odd);
      store_packed<kHeadDim, 2>(job, rules, slots, load, rows, scale_zero, is_odd);
      raw.values = other;
    } else {
      RowFragments<kTiles, 2> v;
      if constexpr (kMean) {
        if (has_copies) {  // a copy holds the mean
          transform_fragments<kHeadDim, 2, kTiles, false>(v, raw, image(), head.num_parts,
                                                          head.unit, 0);
          copy_rows<kHeadDim, 2>(v, job, copies);
        }
        if (is_static) {
          raw.subtract_static(job);
        } else if (means.begin(job, tokens)) {
          raw.subtract_slab(means);
        } else {
          raw.subtract(job, tokens);
        }
      }
      Product::template multiply<kHeadDim, kMean>(v, raw, parts, head);
      __syncwarp();  // all lanes have read what follows overwrites
      fetch_next(first_tile);
      if (!kMean && has_copies) copy_rows<kHeadDim, 2>(v, job, copies);
      spare.keep(v);
      const auto load = [&](int h, RowFragment<kTiles>& half) { spare.load(h, half); };
      encode_packed<kHeadDim, 2>(v, side_index, rules, guess, is_live, load, rows, scale_zero,
                                 is_odd);
      store_packed<kHeadDim, 2>(job, rules, slots, load, rows, scale_zero, is_odd);
    }
  }
}

// Products by a warp's own matrix instructions, from an image as it is.
struct WarpProduct {
  static constexpr bool kTogether = false;

  template <int kHeadDim>
  static __device__ __forceinline__ void put(std::uint8_t* parts, int i, uint4 piece) {
    reinterpret_cast<uint4*>(parts)[i] = piece;
  }
  static __device__ __forceinline__ void written() {}
  // kRest: rows are in two parts.
  template <int kHeadDim, bool kRest>
  static __device__ __forceinline__ void multiply(RowFragments<kHeadDim / 8, 2>& v,
                                                  const TileRows<kHeadDim>& rows,
                                                  const std::uint8_t* parts,
                                                  const TransformHead& head) {
    transform_fragments<kHeadDim, 2, kHeadDim / 8, kRest>(
        v, rows, reinterpret_cast<const uint4*>(parts), head.num_parts, head.unit, 0);
  }
};

}  // namespace oscar::cuda::encode

// Rows to pages of 2-bit codes for many tokens, by way of a transform: a warp takes sixteen rows at
// a time, as pairs of float16 (packed_rows.cuh). docs/kernels/cuda-encode.md counts the
// instructions.
#pragma once

#include "cuda/encode/fragments.h"
#include "cuda/encode/packed_rows.cuh"
#include "cuda/encode/tile_walk.cuh"

namespace oscar::cuda::encode {

// Codes of a warp's rows, and of the own row what is stored and whether the general encoder must
// take it (store_packed). load(h, half): row h, again. All lanes take part.
template <int kHeadDim, int kHalves, typename Load>
__device__ __forceinline__ void encode_packed(const RowFragments<kHeadDim / 8, kHalves>& v,
                                              int side, const RowRules& rules,
                                              const RankGuess& guess, bool is_live, Load load,
                                              RowBytes (&rows)[kHalves], uint32_t& scale_zero,
                                              bool& is_odd) {
  PackedRows<kHeadDim / 8, kHalves> packed;
  packed.load(v, rules.affine);
  float threshold = __uint_as_float(0x7f800000u);
  if (guess.rank < kHeadDim) threshold = packed.order_statistic(guess, is_live, load);
  RowScale scale = packed.choose_scale(rules, threshold, load);
  is_odd = is_live && !packed.is_fine;
  // From here on in the units of the rows.
  scale.scale *= packed.inverse_factor;
  scale.inverse *= packed.factor;
  const float fitted =
      packed.level_bytes(scale, rules.fit, threshold * packed.inverse_factor, side, load, rows);
  scale_zero =
      __float_as_uint(round_to_bf16(fitted)) >> 16 | (__float_as_uint(scale.zero) & 0xffff0000u);
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

// The same by what lanes know of the own row.
template <int kHeadDim, typename Load>
__device__ __forceinline__ void store_any(const TileJob& job, const RowRules& rules, Load load,
                                          const RowBytes (&rows)[2], std::int64_t slot,
                                          uint32_t scale_zero, bool is_odd) {
  std::int64_t slots[2];
  uint32_t scales[2];
  bool odd[2];
  to_halves<2>(slot, slots);
  to_halves<2>(scale_zero, scales);
  to_halves<2>(is_odd, odd);
  store_packed<kHeadDim, 2>(job, rules, slots, load, rows, scales, odd);
}

// What a warp has in shared memory: a tile, and its rows in float32 or, before, what BF16 leaves of
// rows less the mean; then a page's mean.
template <int kHeadDim, Source kSource>
inline constexpr int kPackedWarpBytes =
    3 * kSlab* kHeadDim * 2 + (kSource == Source::kLessMean ? SlabMeans<kHeadDim>::kWarpBytes : 0);
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
  __device__ __forceinline__ void operator()(int h, RowFragment<kTiles>& half) const {
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
  constexpr bool kMean = kSource == Source::kLessMean;
  const int side_index = blockIdx.z;
  const TileJob job = job_of_block(params);
  if (job.side.rows == nullptr) return;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2;
  const int num_warps = blockDim.x >> 5;
  std::uint8_t* parts = shared + num_warps * kPackedWarpBytes<kHeadDim, kSource>;
  const uint32_t first_tile =
      ptx::shared_address(shared) + warp * kPackedWarpBytes<kHeadDim, kSource>;
  const TileRows<kHeadDim> raw{first_tile, first_tile + kTileBytes};
  const SpareRows<kTiles> spare{first_tile + kTileBytes + 16 * lane};
  TransformHead head{1.0f, 1, {}};
  SlabMeans<kHeadDim> means{0, 0, -1};
  // One or two parts of the image.
  const auto image = [&] {
    return reinterpret_cast<const uint4*>(
        static_cast<const std::uint8_t*>(job.side.transform_image) +
        job.head * transform_head_bytes(kHeadDim) + sizeof(TransformHead));
  };
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
  const RowRules rules = rules_of(job, false);
  const RankGuess guess = RankGuess::of(rules.clip_ratio, kHeadDim);
  const std::int64_t first_slot = params.slots[0];
  const int shift = first_slot < 0 ? 0 : static_cast<int>(first_slot % kSlab);
  const int num_tokens = static_cast<int>(params.num_tokens);
  [[maybe_unused]] const bool is_static = side_index != 0 || params.num_pairs == 0;
  // With a mean, a block's tiles are one quarter of every page (the number of blocks is a multiple
  // of four): sixteen rows of cosines serve them all.
  const int between = (kMean ? static_cast<int>(gridDim.x) : 1) * kSlab;
  const int step = gridDim.x * num_warps * kSlab;
  // Tiles of a group of warps that walks together end when its first does.
  const int ahead = Product::kTogether ? warp % 4 * between : 0;
  int next = (kMean ? blockIdx.x * kSlab : blockIdx.x * num_warps * kSlab) + warp * between - shift;
  // Registers are scarce: the walk's addresses are found again for every tile.
  const auto take = [&] {
    const std::int64_t slot = TileWalk<kHeadDim>::from(job, next, ptx::lane_again())
                                  .take(job, step, [&](int h, const bf16_t* from, bool is_there) {
                                    raw.fetch(h, from, is_there);
                                  });
    next += step;
    return slot;
  };
  std::int64_t next_slot = -1;
  bool has_next = next - ahead < num_tokens;
  if (has_next) next_slot = take();
#pragma unroll 1
  while (has_next) {
    const int token = next - step;
    std::int64_t slot = next_slot;
    has_next = next - ahead < num_tokens;
    const auto tokens_of = [&](int(&tokens)[2]) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        tokens[h] = token + 8 * h + g;
        if (tokens[h] >= num_tokens) tokens[h] = -1;  // before the first: negative already
      }
    };
    std::int64_t copies[2] = {-1, -1};
    bool has_copies = false;
    if (params.copies != nullptr) {
      int tokens[2];
      tokens_of(tokens);
      copy_slots_of<2>(params, job.side_index, tokens, copies);
      has_copies = any_copy<2>(copies);
    }
    raw.wait();
    RowBytes rows[2] = {};
    uint32_t scale_zero;
    bool is_odd;
    RowFragments<kTiles, 2> v;
    if constexpr (kMean) {
      if (has_copies) {  // a copy holds the mean
        transform_fragments<kHeadDim, 2, kTiles, false>(v, raw, image(), head.num_parts, head.unit,
                                                        0);
        copy_rows<kHeadDim, 2>(v, job, copies);
      }
      int tokens[2];
      tokens_of(tokens);
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
    // The next rows (and slots) come while these are encoded.
    if (has_next) next_slot = take();
    if constexpr (kMean) {
      const int own = token + own_row(ptx::lane_again());
      slot = own >= 0 && own < num_tokens ? params.slots[own] : -1;
    }
    if (!kMean && has_copies) copy_rows<kHeadDim, 2>(v, job, copies);
    spare.keep(v);
    encode_packed<kHeadDim, 2>(v, side_index, rules, guess, slot >= 0, spare, rows, scale_zero,
                               is_odd);
    if (!SlabPlace<kHeadDim>::of(job, ptx::lane_again())
             .store(side_index, slot, rows, scale_zero, is_odd)) {
      store_any<kHeadDim>(job, rules, spare, rows, slot, scale_zero, is_odd);
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

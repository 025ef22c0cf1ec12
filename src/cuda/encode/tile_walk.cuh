// The way of a warp through tiles of sixteen rows: where the next tile's rows and slots are, and
// where a tile's bytes go. A lane knows the slot, scale and state of one row, its own: row g, or g
// + 8 in lanes of odd t.
#pragma once

#include "cuda/encode/row_job.cuh"

namespace oscar::cuda::encode {

// In a tile.
__device__ __forceinline__ int own_row(int lane) { return (lane >> 2) + (lane & 1) * 8; }

template <int kHeadDim>
struct TileWalk {
  int next;                      // the next tile's first token; may be before the first or beyond
  const bf16_t* rows_at;         // the lane's first piece of 16 bytes of its row g
  const std::int64_t* slots_at;  // of the own row
  int lane;

  // From token `next` on.
  static __device__ __forceinline__ TileWalk from(const TileJob& job, int next, int lane) {
    return {next,
            job.side.rows + job.head * job.side.head_stride + (lane & 3) * 8 +
                (std::int64_t{next} + (lane >> 2)) * job.side.token_stride,
            job.params.slots + (next + own_row(lane)), lane};
  }
  // fetch(h, from, is_there) of rows g and g + 8 of the next tile; returns the own row's slot.
  // `step` tokens on is the tile after that.
  template <typename Fetch>
  __device__ __forceinline__ std::int64_t take(const TileJob& job, int step, Fetch fetch) {
    const auto num_tokens = static_cast<uint32_t>(job.params.num_tokens);
    const uint32_t row = static_cast<uint32_t>(next) + (lane >> 2);
    fetch(0, rows_at, row < num_tokens);
    fetch(1, rows_at + 8 * job.side.token_stride, row + 8 < num_tokens);
    const std::int64_t slot =
        static_cast<uint32_t>(next) + own_row(lane) < num_tokens ? *slots_at : -1;
    next += step;
    rows_at += step * job.side.token_stride;
    slots_at += step;
    return slot;
  }
};

// Where tiles go that are the sixteen tokens of a slab in order.
template <int kHeadDim>
struct SlabPlace {
  std::uint8_t* plane;  // of page 0
  std::int64_t page_stride_bytes;
  int scale_at;  // of the own row in a page's first slab
  bool affine;
  int lane;

  static __device__ __forceinline__ SlabPlace of(const TileJob& job, int lane) {
    const bool affine = job.side.plane.affine;
    const DevicePlane order{kHeadDim, 2, kHeadDim, affine, true, Side::kKey};
    return {plane_of(job, 0), job.params.page_stride_bytes, order.scale_offset(0, own_row(lane)),
            affine, lane};
  }
  // Stores a tile that is such a one, and ordinary, 16 bytes a lane; false: it is not. slot,
  // scale_zero, is_odd: of the own row.
  __device__ __forceinline__ bool store(int side, std::int64_t slot, const RowBytes (&rows)[2],
                                        uint32_t scale_zero, bool is_odd) const {
    using Packer = RowPacker<kHeadDim, 2>;
    const std::int64_t first = slot - own_row(lane), slab = __shfl_sync(~0u, first, 0);
    const bool is_in_place = !is_odd && first == slab && slab >= 0 && (slab & (kSlab - 1)) == 0;
    if (!__all_sync(~0u, is_in_place)) return false;
    const auto page = static_cast<std::int64_t>(static_cast<uint64_t>(slab) / kPageTokens);
    std::uint8_t* base = plane + page * page_stride_bytes;
    const int token = static_cast<int>(slab & (kPageTokens - 1));
    if (side == 0) {
      Packer::store_key_slab(rows, base, token);
    } else {
      Packer::store_value_slab(rows, base, token);
    }
    if ((lane & 2) == 0) {
      std::uint8_t* p = base + scale_at;
      if (affine) {
        *reinterpret_cast<uint32_t*>(p + 4 * token) = scale_zero;
      } else {
        *reinterpret_cast<uint16_t*>(p + 2 * token) = static_cast<uint16_t>(scale_zero);
      }
    }
    return true;
  }
};

}  // namespace oscar::cuda::encode

// Asks for a warp's units, one a call: pages by one bulk copy, exact rows by two to four.
#pragma once

#include "cuda/ptx/bulk_copy.h"
#include "cuda/sm90/decode/config.h"
#include "cuda/sm90/decode/schedule.cuh"

namespace oscar::cuda::sm90 {

// a·b with b below 2^32, as check_params ensures for strides: one instruction.
__device__ __forceinline__ uint64_t wide(int a, int64_t b) {
  return static_cast<uint64_t>(static_cast<uint32_t>(a)) * static_cast<uint32_t>(b);
}

// Fills the ring: walks the block's segments, this warp's units of each, one unit a call. The
// schedule lies in shared memory, one a warp, so that it takes no registers from the loop; lane 0
// moves it.
template <class C>
struct Producer {
  Schedule* schedule;
  int has_segment;     // 0 or 1
  int unit;            // next unit of this warp in the segment's item
  int end, num_coded;  // of the segment
  int ids;             // lane i: page id of the i-th coded unit of this batch of 32
  int taken;           // of the segment's units
  uint32_t ring, barriers;

  __device__ __forceinline__ void enter_segment(const Segment& segment, int warp) {
    unit = segment.begin + warp;
    num_coded = segment.units.num_coded;
    end = smaller(segment.end, segment.units.count());
    taken = 0;
  }
  // Page ids of this warp's next 32 units, one a lane.
  __device__ __forceinline__ void load_ids(const AttendParams& params, const Segment& segment,
                                           int lane) {
    const int ahead = unit + lane * C::kWarps;
    ids = 0;
    if (ahead < smaller(end, num_coded)) {
      ids = __ldg(params.block_table + wide(segment.seq, params.block_table_stride) +
                  (segment.units.first_page + ahead));
    }
  }
  // Whether the next unit is a coded page of this segment (the block's first).
  __device__ __forceinline__ bool is_coded_in(const Segment& segment) const {
    return has_segment && unit < num_coded && schedule->segment.seq == segment.seq &&
           schedule->segment.head == segment.head;
  }
  // Moves to the next segment that has a unit for this warp, and asks for its page ids early.
  __device__ __forceinline__ void settle(const AttendParams& params, int warp, int lane) {
    while (has_segment && unit >= end) {
      __syncwarp();
      int moved = 0;
      if (lane == 0) moved = schedule->next(params);
      has_segment = __shfl_sync(~0u, moved, 0);
      __syncwarp();
      if (has_segment) enter_segment(schedule->segment, warp);
    }
    if (has_segment && (taken & 31) == 0) load_ids(params, schedule->segment, lane);
  }

  __device__ __forceinline__ void issue(const AttendParams& params, int stage, int warp, int lane) {
    if (!has_segment) return;
    const uint32_t dst = ring + stage * C::kStageBytes, barrier = barriers + 8 * stage;
    if (unit < num_coded) {
      const int id = __shfl_sync(~0u, ids, taken & 31);
      if (lane == 0) issue_page(params, id, dst, barrier);
    } else {
      issue_exact(params, schedule->segment, unit - num_coded, dst, barrier, lane);
    }
    unit += C::kWarps;
    ++taken;
    settle(params, warp, lane);
  }

 private:
  __device__ __forceinline__ void issue_page(const AttendParams& params, int id, uint32_t dst,
                                             uint32_t barrier) const {
#ifdef OSCAR_CUDA_CHECKED
    if (id < 0 || id >= params.num_pages) {
      atomicExch(params.faults, 1);
      id = 0;
    }
#endif
    const uint32_t bytes = C::key_plane_bytes(params) + C::value_plane_bytes(params);
    if constexpr (C::kMean) {
      const uint32_t turn_bytes = params.mean.num_pairs * 8;
      const int page = schedule->segment.units.first_page + unit;
      ptx::barrier_expect(barrier, bytes + turn_bytes);
      ptx::bulk_copy(dst + C::kTurnBegin,
                     reinterpret_cast<const uint8_t*>(params.mean.start) + wide(page, turn_bytes),
                     turn_bytes, barrier, ptx::kEvictNormal);
    } else {
      ptx::barrier_expect(barrier, bytes);
    }
    ptx::bulk_copy(dst, schedule->head_pages + wide(id, params.page_stride_bytes), bytes, barrier,
                   ptx::kEvictFirst);
  }
  // Rows of consecutive tokens lie together but for the ring's end: lanes 0 and 1 copy the keys
  // before and after it, 2 and 3 the values.
  __device__ __forceinline__ void issue_exact(const AttendParams& params, const Segment& segment,
                                              int exact_unit, uint32_t dst, uint32_t barrier,
                                              int lane) const {
    constexpr uint32_t kRowBytes = C::kExactRowBytes;
    const ExactCopies& copies = params.copies;
    const TokenRange tokens = segment.units.exact_tokens(window_rules(params), exact_unit);
    const int count = tokens.end - tokens.begin;
    if (lane == 0) ptx::barrier_expect(barrier, 2 * count * kRowBytes);
    __syncwarp();
    if (lane >= 4) return;
    const bool is_sink = exact_unit < segment.units.num_sink;
    const int in_ring = is_sink ? 0 : tokens.begin % copies.ring_rows;
    const int before = is_sink ? count : smaller(count, copies.ring_rows - in_ring);
    const bool is_after = lane & 1;
    const int num_rows = is_after ? count - before : before;
    if (num_rows == 0) return;
    const int row = is_after  ? copies.sink_rows
                    : is_sink ? tokens.begin
                              : copies.sink_rows + in_ring;
    const int side = lane >> 1, rows = copies.sink_rows + copies.ring_rows;
    const int64_t plane =
        (static_cast<int64_t>(segment.copy_block) * params.num_kv_heads + segment.head) * 2 + side;
    ptx::bulk_copy(dst + (side * kExactUnit + (is_after ? before : 0)) * kRowBytes,
                   copies.rows + (plane * rows + row) * C::kHeadDim, num_rows * kRowBytes, barrier,
                   ptx::kEvictFirst);
  }
};

}  // namespace oscar::cuda::sm90

// Which units a block works on. An item is one (sequence, KV head, row block); a segment is a
// block's range of one item's units.
//
//   num_splits > 0: a block is one split of one item; a split has ⌈units / num_splits⌉ units.
//   num_splits = 0: all units of all items in a row are cut into one equal range a block; a block
//   may cross items.
// Items without units count as one, so that somebody writes their empty result.
#pragma once

#include "cuda/attend_params.h"
#include "cuda/attend_units.h"

namespace oscar::cuda {

__device__ __forceinline__ WindowRules window_rules(const AttendParams& params) {
  return {params.num_queries, params.sink_tokens, params.recent_tokens, params.sliding_window};
}

// Block of a sequence's exact copies, −1: none.
__device__ __forceinline__ int copy_block_of(const AttendParams& params, int seq) {
  if (params.copies.rows == nullptr) return -1;
  return params.copies.blocks == nullptr ? -1 : __ldg(params.copies.blocks + seq);
}

__device__ __forceinline__ SequenceUnits units_of_sequence(const AttendParams& params, int seq) {
  return sequence_units(window_rules(params), copy_block_of(params, seq) >= 0,
                        __ldg(params.seq_lens + seq));
}

__device__ __forceinline__ int counted_units(const AttendParams& params, int seq) {
  return larger(1, units_of_sequence(params, seq).count());
}

// ⌈a / b⌉, by one reciprocal where a is below 2^20.
__device__ __forceinline__ int ceil_quotient(int a, int b) {
  if (a >= 1 << 20) return (a - 1) / b + 1;
  const int q = static_cast<int>(__fdividef(static_cast<float>(a), static_cast<float>(b)));
  const int rest = a - q * b;  // q is off by one at most
  return q + (rest > 0) + (rest > b) - (rest <= -b);
}

// Splits launch as (split, item of the sequence, sequence), which spares divisions; else the grid
// is a row.
__device__ __forceinline__ int block_index() {
  return (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
}

struct Segment {
  int seq, head, row_block, copy_block;
  SequenceUnits units;
  int begin, end;  // counted units of the item that are this block's
  int counted;     // counted units of the item
  int item_begin;  // of the item in the row of all units (num_splits = 0)
};

// Where a row of a block lies in q, out and lse.
struct RowPlace {
  std::int64_t token;  // of [num_seqs·num_queries]
  int q_head;
  bool is_valid;  // false: padding

  static __device__ __forceinline__ RowPlace of(const AttendParams& params, const Segment& segment,
                                                int rows_per_block, int row) {
    const int ratio = params.q_heads_per_kv_head;
    const int all = segment.row_block * rows_per_block + row;
    const int query = params.num_queries == 1 ? 0 : all / ratio;
    return {static_cast<std::int64_t>(segment.seq) * params.num_queries + query,
            segment.head * ratio + all - query * ratio, all < params.num_queries * ratio};
  }
};

// Walks a block's segments; producer and consumer each have one.
struct Schedule {
  Segment segment;
  int range_begin, range_end;  // this block's units in the row of all units; splits: of the item
  int items_per_seq;
  int chunk;                       // units of a block
  const std::uint8_t* head_pages;  // params.pages at the segment's head

  // prefix: [num_seqs + 1] sums of counted units a sequence; unused with splits. early(): called
  // once sequence and head are known, with splits before the length has arrived. False: nothing to
  // do.
  template <typename Early>
  __device__ __forceinline__ bool start(const AttendParams& params, const int* prefix,
                                        Early early) {
    items_per_seq = params.num_kv_heads * params.num_row_blocks;
    if (params.num_splits > 0) {
      const int split = blockIdx.x;
      segment.seq = blockIdx.z;
      set_item(params, blockIdx.y);
      const int length = __ldg(params.seq_lens + segment.seq);
      segment.copy_block = copy_block_of(params, segment.seq);
      early();
      set_units(params, length);
      chunk = ceil_quotient(segment.counted, params.num_splits);
      segment.begin = smaller(split * chunk, segment.counted);
      segment.end = smaller(segment.begin + chunk, segment.counted);
      segment.item_begin = range_begin = range_end = 0;
      return segment.begin < segment.end;
    }
    const int total = prefix[params.num_seqs] * items_per_seq;
    chunk = (total + gridDim.x - 1) / gridDim.x;
    range_begin = smaller(blockIdx.x * chunk, total);
    range_end = smaller(range_begin + chunk, total);
    if (range_begin >= range_end) return false;
    int low = 0, high = params.num_seqs;  // prefix[low]·items ≤ range_begin < prefix[high]·items
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (prefix[middle] * items_per_seq <= range_begin) {
        low = middle;
      } else {
        high = middle;
      }
    }
    load_sequence(params, low);
    const int in_seq = range_begin - prefix[low] * items_per_seq;
    const int item = in_seq / segment.counted;
    set_item(params, item);
    segment.item_begin = prefix[low] * items_per_seq + item * segment.counted;
    set_range();
    early();
    return true;
  }

  __device__ __forceinline__ bool next(const AttendParams& params) {
    if (params.num_splits > 0) return false;
    const int begin = segment.item_begin + segment.counted;
    if (begin >= range_end) return false;
    const int item = segment.head * params.num_row_blocks + segment.row_block + 1;
    if (item == items_per_seq) {
      load_sequence(params, segment.seq + 1);
      set_item(params, 0);
    } else {
      set_item(params, item);
    }
    segment.item_begin = begin;
    set_range();
    return true;
  }

  // Blocks [first, first + count) that work on the segment's item.
  __device__ __forceinline__ int2 contributors(const AttendParams& params) const {
    if (params.num_splits > 0) {
      return {block_index() - static_cast<int>(blockIdx.x), (segment.counted + chunk - 1) / chunk};
    }
    const int first = segment.item_begin / chunk;
    return {first, (segment.item_begin + segment.counted - 1) / chunk - first + 1};
  }
  // Which of a contributor's two partials holds the item: its first segment's or its last's.
  __device__ __forceinline__ int partial_of(const AttendParams& params, int block) const {
    if (params.num_splits > 0) return 2 * block;
    return 2 * block + (block * chunk >= segment.item_begin ? 0 : 1);
  }

 private:
  __device__ __forceinline__ void load_sequence(const AttendParams& params, int seq) {
    segment.seq = seq;
    const int length = __ldg(params.seq_lens + seq);
    segment.copy_block = copy_block_of(params, seq);
    set_units(params, length);
  }
  __device__ __forceinline__ void set_units(const AttendParams& params, int length) {
    segment.units = sequence_units(window_rules(params), segment.copy_block >= 0, length);
    segment.counted = larger(1, segment.units.count());
  }
  __device__ __forceinline__ void set_item(const AttendParams& params, int item) {
    segment.head = params.num_row_blocks == 1 ? item : item / params.num_row_blocks;
    segment.row_block = item - segment.head * params.num_row_blocks;
    head_pages = params.pages + segment.head * params.head_stride_bytes;
  }
  __device__ __forceinline__ void set_range() {
    segment.begin = larger(0, range_begin - segment.item_begin);
    segment.end = smaller(segment.counted, range_end - segment.item_begin);
  }
};

// Prefix sums of counted units over the sequences, by the whole block; prefix: [num_seqs + 1] in
// shared memory. Ends with a barrier.
__device__ __forceinline__ void build_prefix(const AttendParams& params, int* prefix) {
  if (threadIdx.x < 32) {
    int sum = 0;
    for (int first = 0; first < params.num_seqs; first += 32) {
      const int seq = first + threadIdx.x;
      int value = seq < params.num_seqs ? counted_units(params, seq) : 0;
#pragma unroll
      for (int o = 1; o < 32; o <<= 1) {
        const int other = __shfl_up_sync(~0u, value, o);
        if (static_cast<int>(threadIdx.x) >= o) value += other;
      }
      if (seq < params.num_seqs) prefix[seq + 1] = sum + value;
      sum += __shfl_sync(~0u, value, 31);
    }
    if (threadIdx.x == 0) prefix[0] = 0;
  }
  __syncthreads();
}

}  // namespace oscar::cuda

// Decode attention over coded pages and exact copies for Hopper. docs/kernels/cuda-decode.md
// derives the design.
//
// A warp owns whole units: a ring of kStages in shared memory, filled by bulk copies, with its own
// softmax state. No barrier of the block inside the loop over units; states merge once a segment.
#pragma once

#include <cstddef>

#include "cuda/sm90/decode/exact.cuh"
#include "cuda/sm90/decode/finish.cuh"
#include "cuda/sm90/decode/keys.cuh"
#include "cuda/sm90/decode/mean.cuh"
#include "cuda/sm90/decode/producer.cuh"
#include "cuda/sm90/decode/schedule.cuh"
#include "cuda/sm90/decode/values.cuh"

namespace oscar::cuda::sm90 {

// Query position of this lane's row in head tile i; rows of padding follow the last query.
template <class C>
__device__ __forceinline__ int query_position(const AttendParams& params, const Segment& segment,
                                              int i, int t) {
  if (params.num_queries == 1) return segment.units.length - 1;
  const int row = segment.row_block * C::kRows + i * 4 + t;
  const int query = smaller(row / params.q_heads_per_kv_head, params.num_queries - 1);
  return segment.units.length - params.num_queries + query;
}

// Hides the tokens of a coded page that a row may not read as codes.
template <class C>
__device__ __forceinline__ void mask_page(PageLogits<C>& logits, const AttendParams& params,
                                          const Segment& segment, int first_token, int lane) {
  const int g = lane >> 2;
#pragma unroll
  for (int i = 0; i < C::kHeadTiles; ++i) {
    const TokenRange seen = coded_tokens(window_rules(params), segment.copy_block >= 0,
                                         query_position<C>(params, segment, i, lane & 3));
#pragma unroll
    for (int slab = 0; slab < 4; ++slab) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = first_token + slab * kSlab + half * 8 + g;
        if (!seen.contains(token)) logits[slab][half][i] = kMasked;
      }
    }
  }
}

// Scales of tokens beyond the sequence may be NaN: zero them where weights meet them.
template <class C>
__device__ __forceinline__ void scrub_scales(const AttendParams& params, uint32_t value_plane,
                                             int num_valid, int lane) {
  for (int token = lane; token < kPageTokens; token += 32) {
    if (token < num_valid) continue;
    for (int group = 0; group < params.value.num_groups(); ++group) {
      ptx::store_shared_2(value_plane + params.value.scale_offset(group, token), 0);
      if (C::kAffine) ptx::store_shared_2(value_plane + params.value.zero_offset(group, token), 0);
    }
  }
  ptx::fence_async_proxy();
  __syncwarp();
}

// Value rows that no token filled hold what was there before: zero them where weights meet them.
template <class C>
__device__ __forceinline__ void scrub_rows(uint32_t values, int num_valid, int lane) {
  constexpr int kPieces = C::kExactRowBytes / 16;
  for (int i = num_valid * kPieces + lane; i < kExactUnit * kPieces; i += 32) {
    ptx::store_shared_16(values + 16 * i, uint4{0, 0, 0, 0});
  }
  ptx::fence_async_proxy();
  __syncwarp();
}

// logit → soft_cap·tanh(logit / soft_cap), in log2 units relative to max.
__device__ __forceinline__ float capped(float logit, float max, float cap_log2) {
  const float x = (logit + max) / cap_log2;
  // tanh(x) = 1 − 2 / (1 + e^{2x})
  const float e = ptx::exp2_approx(x * 2.885390081777927f);
  return cap_log2 * (1.0f - 2.0f / (1.0f + e)) - max;
}

// The block's current segment, in shared memory: read once a unit, so that it takes no registers
// from the loop.
struct BlockSegment {
  Schedule schedule;
  // First tokens of pages that every row reads wholly as codes lie in [clean_begin, clean_end].
  int clean_begin, clean_end;
  int is_valid;

  __device__ __forceinline__ void set(const AttendParams& params, const Schedule& now) {
    schedule = now;
    set_clean(params);
  }
  __device__ __forceinline__ void advance(const AttendParams& params) {
    is_valid = schedule.next(params);
    set_clean(params);
  }

 private:
  __device__ __forceinline__ void set_clean(const AttendParams& params) {
    const Segment& segment = schedule.segment;
    const bool has_copies = segment.copy_block >= 0;
    const int last = segment.units.length - 1;
    clean_begin = coded_tokens(window_rules(params), has_copies, last).begin;
    clean_end = coded_tokens(window_rules(params), has_copies, last + 1 - params.num_queries).end -
                kPageTokens;
  }
};

static_assert(sizeof(BlockSegment) <= 128 && sizeof(Schedule) <= kScheduleBytes);
inline constexpr uint32_t kUnitsOffset = offsetof(BlockSegment, schedule.segment.units.length);
inline constexpr uint32_t kCleanOffset = offsetof(BlockSegment, clean_begin);
static_assert(offsetof(SequenceUnits, first_page) == offsetof(SequenceUnits, length) + 4);

template <class C>
struct Consumer {
  const AttendParams& params;
  const QueryStore<C>& query;
  const BlockSegment& block;
  uint32_t block_address;  // of `block` in shared memory: what every page reads, two words at once
  MeanStore<C> mean;
  int key_group_stride, value_group_stride;

  __device__ __forceinline__ void coded_unit(WarpState<C>& state, uint32_t stage, int unit,
                                             int lane) const {
    static_assert(kUnitsOffset % 8 == 0 && kCleanOffset % 8 == 0);
    const uint2 units = ptx::load_shared_8(block_address + kUnitsOffset);  // length, first_page
    const uint2 clean = ptx::load_shared_8(block_address + kCleanOffset);
    const uint32_t value_plane = stage + C::key_plane_bytes(params);
    const int first_token = (static_cast<int>(units.y) + unit) * kPageTokens;
    const int num_valid = static_cast<int>(units.x) - first_token;
    if (num_valid < kPageTokens) scrub_scales<C>(params, value_plane, num_valid, lane);

    PageLogits<C> logits;
    if constexpr (C::kMean) {
      float max[C::kHeadTiles];
#pragma unroll
      for (int i = 0; i < C::kHeadTiles; ++i) {
        max[i] = state.max[i] - mean.constant(4 * i + (lane & 3));
      }
      page_logits<C>(logits, stage, stage + C::kKeyCodeBytes, key_group_stride, query, max, lane);
      add_mean<C>(logits, params, mean, stage + C::kTurnBegin, lane);
    } else {
      page_logits<C>(logits, stage, stage + C::kKeyCodeBytes, key_group_stride, query, state.max,
                     lane);
    }
    if (params.soft_cap > 0) {
#pragma unroll
      for (int s = 0; s < 8; ++s) {
#pragma unroll
        for (int i = 0; i < C::kHeadTiles; ++i) {
          float& logit = logits[s / 2][s % 2][i];
          logit = capped(logit, state.max[i], params.soft_cap * kLog2E);
        }
      }
    }
    if (first_token < static_cast<int>(clean.x) || first_token > static_cast<int>(clean.y)) {
      mask_page<C>(logits, params, block.schedule.segment, first_token, lane);
    }

    float largest[C::kHeadTiles];
    PackedScales<C> packed;
    packed.load(value_plane + C::kValueCodeBytes, value_group_stride, lane);
    const float scale = packed.largest();
    bool is_over = state.unset != 0;
#pragma unroll
    for (int i = 0; i < C::kHeadTiles; ++i) {
      largest[i] = logits[0][0][i];
#pragma unroll
      for (int s = 1; s < 8; ++s) largest[i] = fmaxf(largest[i], logits[s / 2][s % 2][i]);
      is_over = is_over || ptx::exp2_approx(largest[i]) * scale > kWeightCeiling;
    }
    if (__any_sync(~0u, is_over)) {
      float raise[C::kHeadTiles];
#pragma unroll
      for (int i = 0; i < C::kHeadTiles; ++i) largest[i] += ptx::log2_approx(scale);
      state.raise_max(largest, raise);
#pragma unroll
      for (int i = 0; i < C::kHeadTiles; ++i) {
#pragma unroll
        for (int s = 0; s < 8; ++s) logits[s / 2][s % 2][i] -= raise[i];
      }
    }
    accumulate_page<C>(state, logits, packed, value_plane, lane);
  }

  __device__ __forceinline__ void exact_unit(WarpState<C>& state, uint32_t stage, int exact_unit,
                                             int lane) const {
    const Segment& segment = block.schedule.segment;
    const TokenRange tokens = segment.units.exact_tokens(window_rules(params), exact_unit);
    const int token = tokens.begin + (lane >> 2), count = tokens.end - tokens.begin;
    const uint32_t values = stage + kExactUnit * C::kExactRowBytes;
    if (count < kExactUnit) scrub_rows<C>(values, count, lane);
    float logits[C::kHeadTiles], weights[C::kHeadTiles];
    exact_logits<C>(logits, stage, query, lane);
    bool is_over = state.unset != 0;
#pragma unroll
    for (int i = 0; i < C::kHeadTiles; ++i) {
      logits[i] = logits[i] * (params.scale * kLog2E) - state.max[i];
      if (params.soft_cap > 0) {
        logits[i] = capped(logits[i], state.max[i], params.soft_cap * kLog2E);
      }
      const int position = query_position<C>(params, segment, i, lane & 3);
      if (token >= tokens.end || !reads_exact(window_rules(params), position, token)) {
        logits[i] = kMasked;
      }
      is_over = is_over || logits[i] > kWeightLimit;
    }
    if (__any_sync(~0u, is_over)) {
      float raise[C::kHeadTiles];
      state.raise_max(logits, raise);
#pragma unroll
      for (int i = 0; i < C::kHeadTiles; ++i) logits[i] -= raise[i];
    }
#pragma unroll
    for (int i = 0; i < C::kHeadTiles; ++i) weights[i] = ptx::exp2_approx(logits[i]);
    accumulate_exact<C>(state, weights, values, lane);
  }
};

// True of one unit in kCentreUnits of a warp's, not of the first ones: short segments need no
// centring.
template <class C>
__device__ __forceinline__ bool is_time_to_centre(int units_before) {
  return (units_before & (C::kCentreUnits - 1)) >= C::kCentreUnits - C::kWarps;
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    decode_kernel(const __grid_constant__ AttendParams params) {
  extern __shared__ __align__(128) uint8_t shared[];
  const int thread = threadIdx.x, lane = thread & 31;
  const int warp = __shfl_sync(~0u, thread >> 5, 0);
  int* prefix = reinterpret_cast<int*>(shared + C::kPrefixBegin);
  float* row_floats = reinterpret_cast<float*>(shared + C::kStatesEnd);
  const QueryStore<C> query{shared + C::kQueryWordsEnd,
                            reinterpret_cast<uint32_t*>(shared + C::kScratchEnd), row_floats,
                            row_floats + C::kRows, row_floats + 2 * C::kRows};
  const MergeStore<C> merge{
      reinterpret_cast<float*>(shared + C::kStagesEnd),
      reinterpret_cast<float*>(shared + C::kMeanEnd),
      reinterpret_cast<float*>(shared + C::kMeanEnd) + C::kRows * kStateStride,
      reinterpret_cast<int*>(shared + C::kBarriersEnd)};

  const MeanStore<C> mean{reinterpret_cast<uint4*>(shared + C::kMeanBegin),
                          reinterpret_cast<float*>(shared + C::kMeanBegin + C::kMeanTableBytes)};

  if (params.overlap_previous) ptx::launch_dependents();
  if (params.num_splits == 0) build_prefix(params, prefix);
  Producer<C> producer;
  producer.ring = ptx::shared_address(shared) + warp * C::kStages * C::kStageBytes;
  producer.barriers = ptx::shared_address(shared + C::kRowScalesEnd) + warp * C::kStages * 8;
  Schedule schedule;
  QueryRow<C> first_row;
  // Queries early: loads issued after the copies would wait behind them.
  const auto prepare = [&] {
    if (!params.overlap_previous) first_row.load(params, schedule.segment, warp, lane);
    if (lane == 0) {
      for (int s = 0; s < C::kStages; ++s) ptx::barrier_init(producer.barriers + 8 * s, 1);
      ptx::fence_barrier_init();
    }
  };
  producer.has_segment = schedule.start(params, prefix, prepare);
  if (!producer.has_segment) {
    if (params.overlap_previous) ptx::wait_for_previous_kernel();
    return;
  }
  producer.enter_segment(schedule.segment, warp);
  if (producer.unit < producer.end) producer.load_ids(params, schedule.segment, lane);
  BlockSegment& block = *reinterpret_cast<BlockSegment*>(shared + C::kSegmentBegin);
  if (thread == C::kThreads - 32) block.set(params, schedule);
  producer.schedule = reinterpret_cast<Schedule*>(shared + C::kSchedulesBegin) + warp;
  if (lane == 0) *producer.schedule = schedule;
  __syncwarp();
  if (producer.unit >= producer.end) producer.settle(params, warp, lane);
  // Pages that the previous kernel does not write may be asked for before it ends; exact rows and
  // queries may not.
  bool has_waited = !params.overlap_previous;
  const auto wait = [&] {
    if (has_waited) return;
    ptx::wait_for_previous_kernel();
    has_waited = true;
    first_row.load(params, schedule.segment, warp, lane);
  };
  // One stage early: more would be ahead of the queries in the memory's queue.
  const bool is_early = schedule.segment.copy_block >= 0 &&
                        params.recent_tokens >= params.num_queries &&
                        producer.is_coded_in(schedule.segment);
  if (!is_early) wait();
#pragma unroll 1
  for (int s = 0; s < C::kStages; ++s) {
    if (s == 1) wait();
    producer.issue(params, s, warp, lane);
  }
  if constexpr (C::kMean) {
    mean.build_table(params, thread);
    if (thread == 0) mean.clear_large_steps();
  }
  int stage = 0;
  uint32_t parity = 0;
  bool has_segment = true, is_first = true;
  __syncthreads();
#pragma unroll 1
  while (has_segment) {
    const Segment& segment = block.schedule.segment;
    for (int row = warp; row < C::kRows; row += C::kWarps) {
      if (!is_first || row >= C::kWarps) first_row.load(params, segment, row, lane);
      stage_query_row<C>(query, row, first_row, params.scale * kLog2E, lane);
    }
    is_first = false;
    if constexpr (C::kMean) mean.load_coefficients(params, segment, thread);
    // Asked for early: a block has more than one raw row a warp in few shapes.
    if (params.raw_q != nullptr) first_row.load_raw(params, segment, warp, lane);
    __syncthreads();
    build_query_words<C>(query, thread);
    __syncthreads();
    if (params.raw_q != nullptr) {
      for (int row = warp; row < C::kRows; row += C::kWarps) {
        if (row >= C::kWarps) first_row.load_raw(params, segment, row, lane);
        first_row.put(query, row, lane);
      }
      __syncthreads();
    }

    Consumer<C> consumer{params, query, block, ptx::shared_address(&block), mean, 0, 0};
    consumer.key_group_stride = C::groups(params.key) > 1 ? C::kMetadataBytes : 0;
    consumer.value_group_stride = C::groups(params.value) > 1 ? C::kMetadataBytes : 0;
    WarpState<C> state;
    state.clear();
    const int num_coded = segment.units.num_coded;
    const int end = smaller(segment.end, segment.units.count());
#pragma unroll 1
    for (int unit = segment.begin + warp; unit < end; unit += C::kWarps) {
      ptx::barrier_wait(producer.barriers + 8 * stage, parity);
      const uint32_t data = producer.ring + stage * C::kStageBytes;
      if (unit < num_coded) {
        consumer.coded_unit(state, data, unit, lane);
        if (is_time_to_centre<C>(unit - segment.begin)) state.centre();
      } else {
        consumer.exact_unit(state, data, unit - num_coded, lane);
      }
      __syncwarp();
      producer.issue(params, stage, warp, lane);
      if (++stage == C::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
    finish_segment<C>(params, block.schedule, state, merge);
    if (thread == 0) {
      block.advance(params);
      if constexpr (C::kMean) mean.clear_large_steps();
    }
    __syncthreads();
    has_segment = block.is_valid;
  }
}

}  // namespace oscar::cuda::sm90

// Attention of a chunk of queries over coded pages and exact copies for Hopper.
// docs/kernels/cuda-prefill.md derives the design.
//
// Four warps unpack pages into operands of wgmma, two groups of four multiply: 128 query rows share
// what is unpacked. Tiles go round a ring of two stages.
#pragma once

#include "cuda/ptx/bulk_copy.h"
#include "cuda/sm90/decode/finish.cuh"
#include "cuda/sm90/prefill/mean.cuh"
#include "cuda/sm90/prefill/unpack.cuh"

namespace oscar::cuda::sm90 {

// Which rows, tiles and splits a block has.
struct PrefillJob {
  PrefillRows rows;
  PrefillTiles tiles;
  int copy_block, num_rows;
  int begin, end;  // tiles of this block
};

__device__ __forceinline__ PrefillJob prefill_job(const AttendParams& params) {
  const int split = blockIdx.x % params.num_splits, item = blockIdx.x / params.num_splits;
  const int row_block = item % params.num_row_blocks;
  const int head = item / params.num_row_blocks % params.num_kv_heads;
  const int seq = item / params.num_row_blocks / params.num_kv_heads;
  PrefillJob job{{params, seq, head, row_block * kPrefillRows, __ldg(params.seq_lens + seq)},
                 {},
                 copy_block_of(params, seq),
                 0,
                 0,
                 0};
  job.num_rows = smaller(kPrefillRows, job.rows.count() - job.rows.first);
  job.tiles = PrefillTiles::of(job.rows, job.copy_block >= 0, job.num_rows);
  const int count = job.tiles.count(), chunk = (count + params.num_splits - 1) / params.num_splits;
  job.begin = smaller(split * chunk, count);
  job.end = smaller(job.begin + chunk, count);
  return job;
}

// Shared addresses of a stage's barriers: full, then empty.
template <class C>
struct PrefillRing {
  uint32_t stages, barriers;
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ uint32_t data() const { return stages + stage * C::kStageBytes; }
  __device__ __forceinline__ uint32_t full() const { return barriers + 16 * stage; }
  __device__ __forceinline__ uint32_t empty() const { return full() + 8; }
  __device__ __forceinline__ void advance() {
    if (++stage == C::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <class C>
__device__ __forceinline__ void produce_tiles(const AttendParams& params, const PrefillJob& job,
                                              PrefillRing<C> ring, float key_unit) {
  const int thread = threadIdx.x - C::kConsumers;
  const SequenceUnits& units = job.tiles.units;
  const std::int32_t* table =
      params.block_table + job.rows.seq * params.block_table_stride + units.first_page;
  const std::uint8_t* head_pages = params.pages + job.rows.head * params.head_stride_bytes;
  const int end_coded = smaller(job.end, units.num_coded);
  const auto page_id = [&](int tile) {
    int id = tile < end_coded ? __ldg(table + tile) : 0;
#ifdef OSCAR_CUDA_CHECKED
    if (tile < end_coded && (id < 0 || id >= params.num_pages)) {
      atomicExch(params.faults, 1);
      id = 0;
    }
#endif
    return id;
  };
  PageBytes<C> bytes = {};
  int next_id = page_id(job.begin);
  if (job.begin < end_coded) {
    bytes.load(params, head_pages + next_id * params.page_stride_bytes,
               units.first_page + job.begin, thread);
  }
  next_id = page_id(job.begin + 1);
#pragma unroll 1
  for (int tile = job.begin; tile < job.end; ++tile) {
    ptx::barrier_wait(ring.empty(), ring.parity ^ 1);
    if (tile < end_coded) {
      const int num_valid = job.rows.length - (units.first_page + tile) * kPageTokens;
      bytes.unpack(params, ring.data(), num_valid, key_unit, thread);
      // The next page comes while this one is multiplied.
      if (tile + 1 < end_coded) {
        bytes.load(params, head_pages + next_id * params.page_stride_bytes,
                   units.first_page + tile + 1, thread);
        next_id = page_id(tile + 2);
      }
    } else {
      const ExactCopies& copies = params.copies;
      const TokenRange tokens =
          job.tiles.exact_tokens(window_rules(params), tile - units.num_coded);
      const int num_rows = copies.sink_rows + copies.ring_rows;
      const std::int64_t plane =
          (std::int64_t{job.copy_block} * params.num_kv_heads + job.rows.head) * 2;
      const bf16_t* keys = copies.rows + plane * num_rows * C::kHeadDim;
      const auto row_of = [&](int token) {
        return token < copies.sink_rows ? token : copies.sink_rows + token % copies.ring_rows;
      };
      load_exact_tile<C>(keys, keys + std::int64_t{num_rows} * C::kHeadDim, row_of, tokens.begin,
                         tokens.end, ring.data(), thread);
    }
    ptx::fence_async_proxy();
    ptx::barrier_arrive(ring.full());
    ring.advance();
  }
}

// Sixteen rows of a warp times a tile's keys.
template <class C, bool kCoded>
__device__ __forceinline__ void multiply_keys(TileLogits& logits, uint32_t queries, uint32_t keys) {
  // Lane l gives row l % 16, elements 16·step + 8·(l / 16) on.
  const int lane = threadIdx.x & 31;
  const uint32_t row = queries + (lane & 15) * C::kQueryRowBytes + (lane >> 4) * 16;
  const uint64_t operand = ptx::wgmma_operand(keys, C::kMatrixBytes, C::kKeyRow);
  uint4 a[C::kHeadDim / 16];
#pragma unroll
  for (int step = 0; step < C::kHeadDim / 16; ++step)
    a[step] = ptx::load_matrix_x4(row + 32 * step);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < C::kHeadDim / 16; ++step) {
    const uint64_t b = operand + step * (2 * C::kMatrixBytes >> 4);
    if constexpr (kCoded) {
      ptx::wgmma_f16_n64(logits, a[step], b, step == 0);
    } else {
      ptx::wgmma_bf16_n64(logits, a[step], b, step == 0);
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait();
}

template <class C, bool kCoded>
__device__ __forceinline__ void multiply_values(RowStates<C>& state, const TileWeights& weights,
                                                uint32_t values) {
  const uint64_t operand = ptx::wgmma_operand(values, C::kMatrixBytes, C::kValueRow);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kPageTokens / 16; ++step) {
    const auto &first = weights[2 * step], &second = weights[2 * step + 1];
    const uint4 a = {first[0], first[1], second[0], second[1]};
    const uint64_t b = operand + step * (2 * C::kMatrixBytes >> 4);
    if constexpr (C::kHeadDim == 128) {
      if constexpr (kCoded) {
        ptx::wgmma_f16_n128(state.out, a, b, false);
      } else {
        ptx::wgmma_bf16_n128(state.out, a, b, false);
      }
    } else {
      if constexpr (kCoded) {
        ptx::wgmma_f16_n64(state.out, a, b, false);
      } else {
        ptx::wgmma_bf16_n64(state.out, a, b, false);
      }
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait();
}

inline constexpr int kTilesToCentre = 8;  // RowStates::centre() after so many

template <class C>
__device__ __forceinline__ void consume_tiles(const AttendParams& params, const PrefillJob& job,
                                              PrefillRing<C> ring, const std::uint8_t* shared,
                                              RowStates<C>& state) {
  const int lane = threadIdx.x & 31, first_row = threadIdx.x / 32 * 16;
  const WindowRules rules = window_rules(params);
  const bool has_copies = job.copy_block >= 0;
  const uint32_t base = ptx::shared_address(shared);
  const uint32_t coded_queries = base + C::kCodedQueries + first_row * C::kQueryRowBytes;
  const uint32_t exact_queries = base + C::kExactQueries + first_row * C::kQueryRowBytes;
  const float* sums = reinterpret_cast<const float*>(shared + C::kQuerySums) + first_row;
  const int row = lane >> 2;
  const float query_sums[2] = {sums[row], sums[row + 8]};
  state.unset = (job.num_rows > first_row + row) | (job.num_rows > first_row + row + 8) << 1;
  const float cap_log2 = params.soft_cap * kLog2E;
#pragma unroll 1
  for (int tile = job.begin; tile < job.end; ++tile) {
    ptx::barrier_wait(ring.full(), ring.parity);
    const uint32_t data = ring.data(), values = data + C::kKeyBytes;
    const uint32_t scales = values + C::kValueBytes;
    TileLogits logits;
    TileWeights weights;
    const auto cap = [&] {
      if (params.soft_cap <= 0) return;
#pragma unroll
      for (auto& c : logits) {
#pragma unroll
        for (int k = 0; k < 4; ++k) c[k] = soft_capped(c[k], state.max[k / 2], cap_log2);
      }
    };
    const auto position = [&](int h) { return job.rows.position(first_row + row + 8 * h); };
    if (tile < job.tiles.units.num_coded) {
      multiply_keys<C, true>(logits, coded_queries, data);
      float offsets[2] = {-state.max[0], -state.max[1]};
      if constexpr (C::kMean) {
        offsets[0] += mean_constant<C>(shared, first_row + row);
        offsets[1] += mean_constant<C>(shared, first_row + row + 8);
      }
      scale_logits(logits, offsets, query_sums, scales);
      if constexpr (C::kMean) {
        add_mean<C>(logits, shared, first_row, params.mean.num_pairs, data + C::kTurnBegin);
      }
      cap();
      const int first = (job.tiles.units.first_page + tile) * kPageTokens;
      if (first < job.tiles.clean.begin || first + kPageTokens > job.tiles.clean.end) {
        const TokenRange seen[2] = {coded_tokens(rules, has_copies, position(0)),
                                    coded_tokens(rules, has_copies, position(1))};
        mask_tile(logits, [&](int h, int token) { return seen[h].contains(first + token); });
      }
      if (!coded_weights<C>(weights, state, logits, scales)) {
        float bound[2];
        coded_bound<C>(bound, logits, scales);
        state.raise_max(bound, logits);
        const int unset = state.unset;
        state.unset = 0;
        coded_weights<C>(weights, state, logits, scales);
        state.unset = unset;
      }
      multiply_values<C, true>(state, weights, values);
      if (tile % kTilesToCentre == kTilesToCentre - 1) state.centre();
    } else {
      const TokenRange tokens = job.tiles.exact_tokens(rules, tile - job.tiles.units.num_coded);
      multiply_keys<C, false>(logits, exact_queries, data);
#pragma unroll
      for (auto& c : logits) {
#pragma unroll
        for (int k = 0; k < 4; ++k) c[k] = fmaf(c[k], params.scale * kLog2E, -state.max[k / 2]);
      }
      cap();
      const int positions[2] = {position(0), position(1)};
      mask_tile(logits, [&](int h, int in_tile) {
        const int token = tokens.begin + in_tile;
        return token < tokens.end && reads_exact(rules, positions[h], token);
      });
      if (!exact_weights<C>(weights, state, logits)) {
        float bound[2];
        exact_bound(bound, logits);
        state.raise_max(bound, logits);
        const int unset = state.unset;
        state.unset = 0;
        exact_weights<C>(weights, state, logits);
        state.unset = unset;
      }
      multiply_values<C, false>(state, weights, values);
    }
    ptx::barrier_arrive(ring.empty());
    ring.advance();
  }
  state.reduce_columns();
}

// Of a block: [kRows][kHeadDim] outputs, then [kRows] of (max, sum).
template <class C>
__device__ __forceinline__ float* prefill_partial(const AttendParams& params, std::int64_t block) {
  return params.partials + block * (kPrefillRows * (C::kHeadDim + 2));
}

// Outputs of the warp's rows: unnormalised to the workspace, or to their place.
template <class C>
__device__ __forceinline__ void store_rows_out(const AttendParams& params, const PrefillJob& job,
                                               const RowStates<C>& state) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = threadIdx.x / 32 * 16 + g + 8 * h;
    if (row >= job.num_rows) continue;
    const bool is_unset = state.unset >> h & 1;
    RowState s{is_unset ? kMasked : state.max[h], is_unset ? 0.0f : state.sum[h]};
    const auto value = [&](int n, int e) {
      const float unit = static_cast<float>(1 << (24 - C::value_shift(8 * n)));
      return is_unset ? 0.0f : fmaf(state.out[n][2 * h + e], unit, -state.zero[h]);
    };
    // Pairs of neighbouring channels through put(channel, x, y): columns 8n + 2t, 8n + 2t + 1, or,
    // of trellis codes, one column of two matrices.
    const auto each_pair = [&](auto put) {
#pragma unroll
      for (int n = 0; n < C::kHeadDim / 8; ++n) {
        if constexpr (!C::kTrellis) {
          put(8 * n + 2 * t, value(n, 0), value(n, 1));
        } else if constexpr (C::kHeadDim == 64) {
          put(trellis_value_channel(64, 8 * n + 2 * t), value(n, 0), value(n, 1));
        } else {
          const int column = n % 2, m = n / 2;
          put(trellis_value_channel(C::kHeadDim, 16 * m + 2 * t + column), value(2 * m, column),
              value(2 * m + 1, column));
        }
      }
    };
    if (params.num_splits == 1) {
      const RowWriter writer{params, {job.rows.token(row), job.rows.q_head(row), true}};
      s = settle(writer, s);
      const float inverse = s.sum > 0 ? 1.0f / s.sum : 0.0f;
      bf16_t* to = params.out + writer.place.token * params.out_token_stride +
                   writer.place.q_head * C::kHeadDim;
      each_pair([&](int channel, float x, float y) {
        *reinterpret_cast<uint32_t*>(to + channel) = ptx::pack_bf16(x * inverse, y * inverse);
      });
      if (t == 0) writer.lse(s.max, s.sum);
    } else {
      float* base = prefill_partial<C>(params, blockIdx.x);
      each_pair([&](int channel, float x, float y) {
        __stcg(reinterpret_cast<float2*>(base + row * C::kHeadDim + channel), make_float2(x, y));
      });
      if (t == 0) {
        __stcg(reinterpret_cast<float2*>(base + kPrefillRows * C::kHeadDim) + row,
               make_float2(s.max, s.sum));
      }
    }
  }
}

// The splits' parts to outputs, by the block that arrived last.
template <class C>
__device__ __forceinline__ void combine_splits(const AttendParams& params, const PrefillJob& job) {
  const std::int64_t first = std::int64_t{blockIdx.x} / params.num_splits * params.num_splits;
  constexpr int kQuads = C::kHeadDim / 4;
  for (int i = threadIdx.x; i < job.num_rows * kQuads; i += C::kThreads) {
    const int row = i / kQuads, channel = i % kQuads * 4;
    RowState merged{kMasked, 0.0f};
    float4 out = {0, 0, 0, 0};
    for (int split = 0; split < params.num_splits; ++split) {
      const float* base = prefill_partial<C>(params, first + split);
      const float4 v = __ldcg(reinterpret_cast<const float4*>(base + row * C::kHeadDim + channel));
      const float2 s =
          __ldcg(reinterpret_cast<const float2*>(base + kPrefillRows * C::kHeadDim) + row);
      const float max = fmaxf(merged.max, s.x);
      const float old = ptx::exp2_approx(merged.max - max), fresh = ptx::exp2_approx(s.x - max);
      out = {fmaf(v.x, fresh, out.x * old), fmaf(v.y, fresh, out.y * old),
             fmaf(v.z, fresh, out.z * old), fmaf(v.w, fresh, out.w * old)};
      merged = {max, fmaf(s.y, fresh, merged.sum * old)};
    }
    const RowWriter writer{params, {job.rows.token(row), job.rows.q_head(row), true}};
    const RowState s = settle(writer, merged);
    writer.template values<C::kHeadDim>(channel, out, s.sum);
    if (channel == 0) writer.lse(s.max, s.sum);
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    prefill_kernel(const __grid_constant__ AttendParams params) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  const PrefillJob job = prefill_job(params);
  PrefillRing<C> ring{ptx::shared_address(shared), ptx::shared_address(shared + C::kBarriers)};
  if (threadIdx.x == 0) {
    for (int s = 0; s < C::kStages; ++s) {
      ptx::barrier_init(ring.barriers + 16 * s, C::kGroupThreads);
      ptx::barrier_init(ring.barriers + 16 * s + 8, C::kConsumers);
    }
    ptx::fence_barrier_init();
  }
  if constexpr (C::kMean) {
    stage_mean<C>(job.rows, shared, job.num_rows);
    ptx::fence_async_proxy();  // before the barriers of stage_queries
  }
  const float query_unit = stage_queries<C>(job.rows, shared, job.num_rows);
  if (threadIdx.x >= C::kConsumers) {
    produce_tiles<C>(params, job, ring, query_unit * params.scale * kLog2E);
  } else {
    RowStates<C> state;
    consume_tiles<C>(params, job, ring, shared, state);
    store_rows_out<C>(params, job, state);
  }
  if (params.num_splits == 1) return;
  int* is_last = reinterpret_cast<int*>(shared + C::kWords) + 1;
  __syncthreads();
  if (threadIdx.x == 0) {
    int* counter = params.counters + blockIdx.x / params.num_splits;
    *is_last = ptx::add_one_acq_rel(counter) == params.num_splits - 1;
    if (*is_last) *counter = 0;
  }
  __syncthreads();
  if (*is_last) combine_splits<C>(params, job);
}

}  // namespace oscar::cuda::sm90

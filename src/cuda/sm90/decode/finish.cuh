// End of a segment: the warps' states merge in shared memory; a whole item is written, a part goes
// to the workspace and the last block to arrive combines the parts.
#pragma once

#include "cuda/ptx/memory.h"
#include "cuda/sm90/decode/out_transform.cuh"
#include "cuda/sm90/decode/schedule.cuh"
#include "cuda/sm90/decode/warp_state.cuh"

namespace oscar::cuda::sm90 {

inline constexpr int kStateStride = 16;  // warps

// Shared memory of the merge.
template <class C>
struct MergeStore {
  float* out;  // [kWarps][kRows][kScratchStride]
  float* max;  // [kRows][kStateStride]
  float* sum;  // [kRows][kStateStride]
  int* flag;
};

// Writes a row of a finished item.
struct RowWriter {
  const AttendParams& params;
  RowPlace place;

  // Adds the learned sink to the sum of weights; sum relative to 2^max.
  __device__ __forceinline__ float with_sink(float max, float sum) const {
    if (params.learned_sinks == nullptr) return sum;
    return sum + exp2f(params.learned_sinks[place.q_head] * kLog2E - max);
  }
  __device__ __forceinline__ void lse(float max, float sum) const {
    if (params.lse == nullptr) return;
    params.lse[place.token * params.num_q_heads + place.q_head] =
        sum > 0 ? (max + log2f(sum)) * 0.6931471805599453f : -__int_as_float(0x7f800000);
  }
  // Four positions of the outputs (DecodeConfig::value_channel).
  template <class C>
  __device__ __forceinline__ void positions(int position, float4 v, float sum) const {
    if constexpr (!C::kTrellis) {
      values<C::kHeadDim>(position, v, sum);
    } else {
      const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
      bf16_t* out = params.out + place.token * params.out_token_stride + place.q_head * C::kHeadDim;
      const float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        out[C::value_channel(position + i)] =
            static_cast<bf16_t>(ptx::pack_bf16(x[i] * inverse, 0.0f));
      }
    }
  }
  template <int kHeadDim>
  __device__ __forceinline__ void values(int channel, float4 v, float sum) const {
    const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
    bf16_t* out = params.out + place.token * params.out_token_stride + place.q_head * kHeadDim;
    const uint2 packed = {ptx::pack_bf16(v.x * inverse, v.y * inverse),
                          ptx::pack_bf16(v.z * inverse, v.w * inverse)};
    *reinterpret_cast<uint2*>(out + channel) = packed;
  }
};

// What is neutral in a merge: no weight seen. 2^(kMasked − max) is 0 for every max that saw a
// token.
struct RowState {
  float max, sum;
};

// A learned sink alone may carry a row that saw no token.
__device__ __forceinline__ RowState settle(const RowWriter& writer, RowState s) {
  if (writer.params.learned_sinks != nullptr && s.max <= kMasked) s = {0.0f, 0.0f};
  return {s.max, writer.with_sink(s.max, s.sum)};
}

// Maxima (or sums) of a row's warps, four at a time.
template <class C>
struct WarpValues {
  float4 quads[C::kWarps / 4];

  __device__ __forceinline__ explicit WarpValues(const float* row) {
#pragma unroll
    for (int i = 0; i < C::kWarps / 4; ++i) quads[i] = reinterpret_cast<const float4*>(row)[i];
  }
  __device__ __forceinline__ float largest() const {
    float value = kMasked;
#pragma unroll
    for (const float4& q : quads) value = fmaxf(value, fmaxf(fmaxf(q.x, q.y), fmaxf(q.z, q.w)));
    return value;
  }
};

template <class C>
__device__ __forceinline__ RowState row_state(const MergeStore<C>& store, int row) {
  const WarpValues<C> maxima(store.max + row * kStateStride);
  const WarpValues<C> sums(store.sum + row * kStateStride);
  RowState state{maxima.largest(), 0.0f};
#pragma unroll
  for (int i = 0; i < C::kWarps / 4; ++i) {
    const float4 &m = maxima.quads[i], &s = sums.quads[i];
    state.sum +=
        (s.x * ptx::exp2_approx(m.x - state.max) + s.y * ptx::exp2_approx(m.y - state.max)) +
        (s.z * ptx::exp2_approx(m.z - state.max) + s.w * ptx::exp2_approx(m.w - state.max));
  }
  return state;
}

// This warp's output of `row`s into shared memory, scaled to the block's maximum.
template <class C>
__device__ __forceinline__ void store_warp_out(const WarpState<C>& state,
                                               const MergeStore<C>& store, int warp, int lane) {
  const int g = lane >> 2, t = lane & 3;
  float factor[C::kHeadTiles];
#pragma unroll
  for (int i = 0; i < C::kHeadTiles; ++i) {
    const float largest = WarpValues<C>(store.max + (i * 4 + t) * kStateStride).largest();
    factor[i] = state.is_unset(i) ? 0.0f : ptx::exp2_approx(state.max[i] - largest);
  }
#pragma unroll
  for (int m = 0; m < C::kValueTiles; ++m) {
    const int position = m % C::kCodesPerByte;
    const float unit = static_cast<float>(1 << (24 - C::kValueStep * position));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float a = state.out[m][2 * half], b = state.out[m][2 * half + 1];
      if (position) {
        a -= state.out[m - 1][2 * half];
        b -= state.out[m - 1][2 * half + 1];
      }
      if (C::kHeadTiles == 1) a += b;
      const int channel = m * 16 + half * 8 + g;
#pragma unroll
      for (int i = 0; i < C::kHeadTiles; ++i) {
        const float zero =
            state.zero[m / C::kTilesPerChunk][i] * (C::kAffine ? 1.0f : C::kValueCentre);
        store.out[(warp * C::kRows + i * 4 + t) * C::kScratchStride + channel] =
            ((i ? b : a) * unit - zero) * factor[i];
      }
    }
  }
}

// One partial: [kRows][kHeadDim] outputs, then [kRows] of (max, sum).
template <class C>
struct Partial {
  static constexpr int kFloats = C::kRows * (C::kHeadDim + 2);
  float* base;
  __device__ __forceinline__ float4* out(int row, int channel) const {
    return reinterpret_cast<float4*>(base + row * C::kHeadDim + channel);
  }
  __device__ __forceinline__ float2* state(int row) const {
    return reinterpret_cast<float2*>(base + C::kRows * C::kHeadDim) + row;
  }
};

// Combines the parts [first, first + count) of an item: groups of threads take every kGroups-th
// part, four channels a thread.
template <class C>
__device__ __forceinline__ void combine_parts(const AttendParams& params, const Schedule& schedule,
                                              int2 parts, const MergeStore<C>& store) {
  constexpr int kQuads = C::kRows * C::kHeadDim / 4;
  constexpr int kGroups = C::kThreads >= kQuads ? C::kThreads / kQuads : 1;
  constexpr int kPasses = C::kThreads >= kQuads ? 1 : kQuads / C::kThreads;
  constexpr int kInFlight = 6;
  float4* group_out = reinterpret_cast<float4*>(store.out);
  float2* group_state = reinterpret_cast<float2*>(store.out + kGroups * kQuads * 4);
  static_assert(kGroups * kQuads * 4 + kGroups * kQuads * 2 <=
                C::kWarps * C::kRows * C::kScratchStride);
#pragma unroll 1
  for (int pass = 0; pass < kPasses; ++pass) {
    const int quad = pass * C::kThreads + static_cast<int>(threadIdx.x) % kQuads;
    const int group = kPasses > 1 ? 0 : static_cast<int>(threadIdx.x) / kQuads;
    const int row = quad / (C::kHeadDim / 4), channel = quad % (C::kHeadDim / 4) * 4;
    RowState merged{kMasked, 0.0f};
    float4 out = {0, 0, 0, 0};
    // Adds kCount parts at once: their exponentials do not wait for one another.
    const auto add = [&]<int kCount>(const float4(&outs)[kCount], const float2(&states)[kCount]) {
      float max = merged.max;
#pragma unroll
      for (int k = 0; k < kCount; ++k) max = fmaxf(max, states[k].x);
      const float old = ptx::exp2_approx(merged.max - max);
      out = {out.x * old, out.y * old, out.z * old, out.w * old};
      merged = {max, merged.sum * old};
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const float fresh = ptx::exp2_approx(states[k].x - max);
        out = {fmaf(outs[k].x, fresh, out.x), fmaf(outs[k].y, fresh, out.y),
               fmaf(outs[k].z, fresh, out.z), fmaf(outs[k].w, fresh, out.w)};
        merged.sum = fmaf(states[k].y, fresh, merged.sum);
      }
    };
    if (group < kGroups) {
#pragma unroll 1
      for (int part = group; part < parts.y; part += kInFlight * kGroups) {
        float4 outs[kInFlight];
        float2 states[kInFlight];
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
          const int block = parts.x + part + k * kGroups;
          outs[k] = {0, 0, 0, 0};
          states[k] = {kMasked, 0.0f};
          if (part + k * kGroups < parts.y) {
            const Partial<C> from{params.partials +
                                  static_cast<int64_t>(schedule.partial_of(params, block)) *
                                      Partial<C>::kFloats};
            outs[k] = __ldcg(from.out(row, channel));
            states[k] = __ldcg(from.state(row));
          }
        }
        add(outs, states);
      }
    }
    if constexpr (kGroups > 1) {
      if (group < kGroups) {
        group_out[group * kQuads + quad] = out;
        group_state[group * kQuads + quad] = {merged.max, merged.sum};
      }
      __syncthreads();
      if (group == 0) {
        float4 outs[kGroups - 1];
        float2 states[kGroups - 1];
#pragma unroll
        for (int k = 1; k < kGroups; ++k) {
          outs[k - 1] = group_out[k * kQuads + quad];
          states[k - 1] = group_state[k * kQuads + quad];
        }
        add(outs, states);
      }
    }
    const RowWriter writer{params, RowPlace::of(params, schedule.segment, C::kRows, row)};
    if (group == 0 && writer.place.is_valid) {
      const RowState s = settle(writer, merged);
      writer.template positions<C>(channel, out, s.sum);
      if (channel == 0) writer.lse(s.max, s.sum);
    }
  }
}

template <class C>
__device__ __forceinline__ void finish_segment(const AttendParams& params, const Schedule& schedule,
                                               WarpState<C>& state, const MergeStore<C>& store) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const Segment& segment = schedule.segment;
  state.reduce_lanes();
  if (lane < 4) {
#pragma unroll
    for (int i = 0; i < C::kHeadTiles; ++i) {
      store.max[(i * 4 + lane) * kStateStride + warp] = state.is_unset(i) ? kMasked : state.max[i];
      store.sum[(i * 4 + lane) * kStateStride + warp] = state.sum[i];
    }
  }
  __syncthreads();
  store_warp_out(state, store, warp, lane);
  __syncthreads();

  const bool is_whole = segment.begin == 0 && segment.end == segment.counted;
  const Partial<C> part{params.partials +
                        static_cast<int64_t>(schedule.partial_of(params, block_index())) *
                            Partial<C>::kFloats};
  constexpr int kQuads = C::kRows * C::kHeadDim / 4;
  // Threads without a quad, where there are some, compute the rows' states meanwhile.
  constexpr bool kHasSpare = C::kThreads >= kQuads + 32;
  if (kHasSpare && !is_whole) {
    const int row = static_cast<int>(threadIdx.x) - kQuads;
    if (row >= 0 && row < C::kRows) {
      const RowState s = row_state(store, row);
      __stcg(part.state(row), make_float2(s.max, s.sum));
    }
  }
#pragma unroll 1
  for (int quad = threadIdx.x; quad < kQuads; quad += C::kThreads) {
    const int row = quad / (C::kHeadDim / 4), channel = quad % (C::kHeadDim / 4) * 4;
    RowState s{kMasked, 0.0f};
    if (is_whole || (!kHasSpare && channel == 0)) s = row_state(store, row);
    float4 sum = {0, 0, 0, 0};
#pragma unroll
    for (int w = 0; w < C::kWarps; ++w) {
      const float4 v = *reinterpret_cast<const float4*>(
          store.out + (w * C::kRows + row) * C::kScratchStride + channel);
      sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
    }
    if (is_whole) {
      const RowWriter writer{params, RowPlace::of(params, segment, C::kRows, row)};
      if (!writer.place.is_valid) continue;
      s = settle(writer, s);
      writer.template positions<C>(channel, sum, s.sum);
      if (channel == 0) writer.lse(s.max, s.sum);
    } else {
      __stcg(part.out(row, channel), sum);
      if (!kHasSpare && channel == 0) __stcg(part.state(row), make_float2(s.max, s.sum));
    }
  }
  bool is_finished = is_whole;
  if (!is_whole) {
    const int2 parts = schedule.contributors(params);
    __syncthreads();
    if (threadIdx.x == 0) {
      int* counter = params.counters +
                     (segment.seq * params.num_kv_heads + segment.head) * params.num_row_blocks +
                     segment.row_block;
      const bool is_last = ptx::add_one_acq_rel(counter) == parts.y - 1;
      if (is_last) *counter = 0;
      *store.flag = is_last;
    }
    __syncthreads();
    is_finished = *store.flag;
    if (is_finished) combine_parts<C>(params, schedule, parts, store);
  }
  if constexpr (C::kTransformsOut) {
    if (is_finished && params.out_image != nullptr) transform_item<C>(params, segment);
  }
  __syncthreads();
}

}  // namespace oscar::cuda::sm90

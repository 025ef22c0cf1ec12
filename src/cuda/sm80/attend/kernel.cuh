// Attention for every shape, sm_80 and later: pages become BF16 tiles in shared memory, then the
// usual tensor-core attention.
//
// kRows = 16: the warps share the query rows and each takes 16 tokens of a page (decode). kRows =
// 64: each warp has 16 query rows and takes all tokens (prefill over history). A block's part of
// the tokens is combined with the others' by the last block to arrive.
#pragma once

#include "cuda/ptx/memory.h"
#include "cuda/ptx/mma.h"
#include "cuda/ptx/scalar.h"
#include "cuda/sm80/attend/tile.cuh"

namespace oscar::cuda::sm80 {

inline constexpr float kHidden = -1e30f, kLog2OfE = 1.4426950408889634f;

// Query rows of a block: row = query·ratio + head of the group.
struct Rows {
  const AttendParams& params;
  int seq, head, first;

  __device__ __forceinline__ bool is_valid(int row) const {
    return first + row < params.num_queries * params.q_heads_per_kv_head;
  }
  __device__ __forceinline__ int query(int row) const {
    return (first + row) / params.q_heads_per_kv_head;
  }
  __device__ __forceinline__ int q_head(int row) const {
    return head * params.q_heads_per_kv_head + (first + row) % params.q_heads_per_kv_head;
  }
  __device__ __forceinline__ std::int64_t token(int row) const {
    return static_cast<std::int64_t>(seq) * params.num_queries + query(row);
  }
};

struct Shared {
  Tile tile;
  std::uint16_t* q;  // [kRows][stride]
  float* q_sums;     // [kRows][num_groups]
  float* mean;       // [kRows][2·num_pairs] at the page's start
};

template <int kRows>
__device__ __forceinline__ Shared carve(const AttendParams& params, std::uint8_t* memory) {
  const int stride = params.key.head_dim + 8, groups = params.key.num_groups();
  Shared s;
  s.tile.stride = stride;
  s.tile.keys = reinterpret_cast<std::uint16_t*>(memory);
  s.tile.values = s.tile.keys + kPageTokens * stride;
  s.q = s.tile.values + kPageTokens * stride;
  s.tile.scales = reinterpret_cast<float*>(s.q + kRows * stride);
  s.tile.zeros = s.tile.scales + groups * kPageTokens;
  s.q_sums = s.tile.zeros + groups * kPageTokens;
  s.mean = s.q_sums + kRows * groups;
  return s;
}

// is_raw: the rows for exact keys that are as they came.
template <int kRows>
__device__ __noinline__ void load_query_rows(const AttendParams& params, const Rows& rows,
                                             const Shared& s, bool is_raw) {
  const bf16_t* q = is_raw ? params.raw_q : params.q;
  const std::int64_t token_stride = is_raw ? params.raw_q_token_stride : params.q_token_stride;
  const int head_dim = params.key.head_dim;
  for (int i = threadIdx.x; i < kRows * head_dim; i += kThreads) {
    const int row = i / head_dim, channel = i % head_dim;
    s.q[row * s.tile.stride + channel] =
        rows.is_valid(row)
            ? q[rows.token(row) * token_stride + rows.q_head(row) * head_dim + channel]
            : 0;
  }
}

template <int kRows>
__device__ __forceinline__ void load_queries(const AttendParams& params, const Rows& rows,
                                             const Shared& s) {
  const int group = params.key.group_size;
  load_query_rows<kRows>(params, rows, s, false);
  __syncthreads();
  const int groups = params.key.num_groups();
  for (int i = threadIdx.x; i < kRows * groups; i += kThreads) {
    float sum = 0;
    for (int c = 0; c < group; ++c) {
      const std::uint16_t* q = s.q + i / groups * s.tile.stride + i % groups * group;
      sum += __uint_as_float(static_cast<uint32_t>(q[c]) << 16);
    }
    s.q_sums[i] = sum;
  }
}

// Folds the page's start into the mean's coefficients.
template <int kRows>
__device__ __forceinline__ void fold_mean(const AttendParams& params, const Rows& rows, int page,
                                          const Shared& s) {
  const MeanTerm& mean = params.mean;
  const int pairs = mean.num_pairs;
  for (int i = threadIdx.x; i < kRows * pairs; i += kThreads) {
    const int row = i / pairs, f = i % pairs;
    float a = 0, b = 0;
    if (rows.is_valid(row)) {
      const float* c = mean.coefficients +
                       (rows.token(row) * params.num_q_heads + rows.q_head(row)) * (2 * pairs + 1);
      const float* start = mean.start + (std::int64_t{page} * pairs + f) * 2;
      a = c[2 * f] * start[0] + c[2 * f + 1] * start[1];
      b = c[2 * f + 1] * start[0] - c[2 * f] * start[1];
    }
    s.mean[(row * pairs + f) * 2] = a;
    s.mean[(row * pairs + f) * 2 + 1] = b;
  }
}

template <int kMaxDim>
struct RowState {
  float max[2], sum[2];  // rows g and g + 8
  float out[kMaxDim / 8][4];
};

// 16 rows of A from shared memory for channels [k, k + 16).
__device__ __forceinline__ uint4 load_a(const std::uint16_t* rows, int stride, int k, int lane) {
  const std::uint16_t* p = rows + (lane >> 2) * stride + k + 2 * (lane & 3);
  const auto word = [](const std::uint16_t* q) { return *reinterpret_cast<const uint32_t*>(q); };
  return {word(p), word(p + 8 * stride), word(p + 8), word(p + 8 * stride + 8)};
}

// logits[n][·] of 16 rows and 16 tokens, unscaled.
__device__ __forceinline__ void row_logits(float (&logits)[2][4], const AttendParams& params,
                                           const Shared& s, int first_row, int first_token,
                                           bool is_coded, int lane) {
  const int g = lane >> 2, t = lane & 3, group = params.key.group_size;
  const int groups = params.key.num_groups();
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int k = 0; k < 4; ++k) logits[n][k] = 0;
  }
  for (int gr = 0; gr < groups; ++gr) {
    float dot[2][4] = {};
    for (int k = gr * group; k < (gr + 1) * group; k += 16) {
      const uint4 a = load_a(s.q + first_row * s.tile.stride, s.tile.stride, k, lane);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const std::uint16_t* b =
            s.tile.keys + (first_token + 8 * n + g) * s.tile.stride + k + 2 * t;
        ptx::mma_bf16(dot[n], a, *reinterpret_cast<const uint32_t*>(b),
                      *reinterpret_cast<const uint32_t*>(b + 8));
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (!is_coded) {
          logits[n][k] += dot[n][k];
          continue;
        }
        const int token = first_token + 8 * n + 2 * t + (k & 1), row = first_row + g + (k >> 1) * 8;
        const float zero = s.tile.zeros[gr * kPageTokens + token];
        logits[n][k] += s.tile.scales[gr * kPageTokens + token] *
                        (dot[n][k] - zero * s.q_sums[row * groups + gr]);
      }
    }
  }
}

__device__ __forceinline__ void add_mean(float (&logits)[2][4], const AttendParams& params,
                                         const Rows& rows, const Shared& s, int first_row,
                                         int first_token, int lane) {
  const int g = lane >> 2, t = lane & 3, pairs = params.mean.num_pairs;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int token = first_token + 8 * n + 2 * t + (k & 1), row = first_row + g + (k >> 1) * 8;
      if (!rows.is_valid(row)) continue;
      const float* trig = params.mean.tile + std::int64_t{token} * 2 * pairs;
      const float* c = s.mean + row * 2 * pairs;
      float sum =
          params.mean.coefficients[(rows.token(row) * params.num_q_heads + rows.q_head(row)) *
                                       (2 * pairs + 1) +
                                   2 * pairs];
      for (int f = 0; f < 2 * pairs; ++f) sum += c[f] * __ldg(trig + f);
      logits[n][k] += sum;
    }
  }
}

// One online-softmax step with 16 rows and 16 tokens; logits in log2 units, hidden ones kHidden.
template <int kMaxDim>
__device__ __forceinline__ void attend_tokens(RowState<kMaxDim>& state, float (&logits)[2][4],
                                              const AttendParams& params, const Shared& s,
                                              int first_token, int lane) {
  uint32_t weights[2][2];  // [n][row half]
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float max = state.max[half];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      max = fmaxf(max, fmaxf(logits[n][2 * half], logits[n][2 * half + 1]));
    }
    max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
    max = fmaxf(max, __shfl_xor_sync(~0u, max, 2));
    const float factor = max == state.max[half] ? 1.0f : ptx::exp2_approx(state.max[half] - max);
    state.max[half] = max;
    state.sum[half] *= factor;
#pragma unroll
    for (int d = 0; d < kMaxDim / 8; ++d) {
      state.out[d][2 * half] *= factor;
      state.out[d][2 * half + 1] *= factor;
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float p[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float logit = logits[n][2 * half + k];
        p[k] = logit <= kHidden ? 0.0f : ptx::exp2_approx(logit - max);
      }
      weights[n][half] = ptx::pack_bf16(p[0], p[1]);
      // The rounded weights, so that numerator and denominator agree.
      state.sum[half] += ptx::low_bf16(weights[n][half]) + ptx::high_bf16(weights[n][half]);
    }
  }
  const uint4 a = {weights[0][0], weights[0][1], weights[1][0], weights[1][1]};
  const int matrix = lane >> 3;
  const std::uint16_t* v = s.tile.values +
                           (first_token + (matrix & 1) * 8 + (lane & 7)) * s.tile.stride +
                           (matrix >> 1) * 8;
#pragma unroll
  for (int d = 0; d < kMaxDim / 16; ++d) {
    if (16 * d >= params.key.head_dim) break;
    const uint4 b = ptx::load_matrix_x4_transposed(ptx::shared_address(v + 16 * d));
    ptx::mma_bf16(state.out[2 * d], a, b.x, b.y);
    ptx::mma_bf16(state.out[2 * d + 1], a, b.z, b.w);
  }
}

// What of a page the block's queries may read in one of the two ways.
struct PageNeeds {
  bool coded, exact;
  static __device__ __forceinline__ PageNeeds of(const WindowRules& rules, bool has_copies,
                                                 int length, int page) {
    const int begin = page * kPageTokens, end = smaller(begin + kPageTokens, length);
    const int first = larger(0, length - rules.num_queries), last = length - 1;
    const int coded_begin = coded_tokens(rules, has_copies, first).begin;
    const int coded_end = coded_tokens(rules, has_copies, last).end;
    const bool is_recent = rules.recent_tokens > 0 && end > first + 1 - rules.recent_tokens;
    return {begin < coded_end && end > coded_begin,
            has_copies && (begin < rules.sink_tokens || is_recent)};
  }
};

template <int kMaxDim, int kRows>
__device__ __forceinline__ void attend_page(RowState<kMaxDim>& state, const AttendParams& params,
                                            const Rows& rows, const Source& source, const Shared& s,
                                            int page, bool is_coded, bool* holds_raw) {
  const WindowRules rules{params.num_queries, params.sink_tokens, params.recent_tokens,
                          params.sliding_window};
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const bool has_mean = is_coded && params.mean.coefficients != nullptr;
  __syncthreads();
  if (params.raw_q != nullptr && *holds_raw == is_coded) {
    load_query_rows<kRows>(params, rows, s, !is_coded);
  }
  if (is_coded) {
    load_coded(source, page, s.tile);
    if (has_mean) fold_mean<kRows>(params, rows, page, s);
  } else {
    load_exact(source, rules, page, s.tile);
  }
  __syncthreads();
  if (threadIdx.x == 0) *holds_raw = !is_coded;
  const int first_row = kRows == kWarpRows ? 0 : warp * kWarpRows;
  const int begin = kRows == kWarpRows ? warp * kSlab : 0;
  const int end = kRows == kWarpRows ? begin + kSlab : kPageTokens;
#pragma unroll 1
  for (int first_token = begin; first_token < end; first_token += kSlab) {
    float logits[2][4];
    row_logits(logits, params, s, first_row, first_token, is_coded, lane);
    if (has_mean) add_mean(logits, params, rows, s, first_row, first_token, lane);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int row = first_row + g + (k >> 1) * 8;
        const int token = page * kPageTokens + first_token + 8 * n + 2 * t + (k & 1);
        const int position = source.length - params.num_queries + rows.query(row);
        float logit = logits[n][k] * params.scale;
        if (params.soft_cap > 0) logit = params.soft_cap * tanhf(logit / params.soft_cap);
        const bool is_read =
            rows.is_valid(row) && token < source.length &&
            (is_coded ? coded_tokens(rules, source.copy_block >= 0, position).contains(token)
                      : reads_exact(rules, position, token));
        logits[n][k] = is_read ? logit * kLog2OfE : kHidden;
      }
    }
    attend_tokens<kMaxDim>(state, logits, params, s, first_token, lane);
  }
}

// One warp's 16 rows: [16][head_dim] outputs, then [16] of (max, sum).
__device__ __forceinline__ float* partial_of(const AttendParams& params, std::int64_t block,
                                             int warp) {
  const int head_dim = params.key.head_dim;
  return params.partials + block * partial_floats(head_dim) + warp * kWarpRows * (head_dim + 2);
}

template <int kMaxDim>
__device__ __forceinline__ void store_partial(RowState<kMaxDim>& state,
                                              const AttendParams& params) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int head_dim = params.key.head_dim;
  float* base = partial_of(params, blockIdx.x, warp);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    state.sum[half] += __shfl_xor_sync(~0u, state.sum[half], 1);
    state.sum[half] += __shfl_xor_sync(~0u, state.sum[half], 2);
    const int row = g + 8 * half;
#pragma unroll
    for (int d = 0; d < kMaxDim / 8; ++d) {
      if (8 * d >= head_dim) break;
      *reinterpret_cast<float2*>(base + row * head_dim + 8 * d + 2 * t) = {
          state.out[d][2 * half], state.out[d][2 * half + 1]};
    }
    if (t == 0) {
      reinterpret_cast<float2*>(base + kWarpRows * head_dim)[row] = {state.max[half],
                                                                     state.sum[half]};
    }
  }
}

template <int kRows>
__device__ __forceinline__ void combine(const AttendParams& params, const Rows& rows,
                                        std::int64_t first_block) {
  const int head_dim = params.key.head_dim;
  const int sets = kRows == kWarpRows ? kWarps : 1;  // partials of a row and block
  for (int i = threadIdx.x; i < kRows * (head_dim / 2); i += kThreads) {
    const int row = i / (head_dim / 2), channel = i % (head_dim / 2) * 2;
    if (!rows.is_valid(row)) continue;
    const int warp = kRows == kWarpRows ? 0 : row / kWarpRows, warp_row = row % kWarpRows;
    float max = kHidden, sum = 0;
    float2 out = {0, 0};
    for (int part = 0; part < params.num_splits * sets; ++part) {
      const float* base = partial_of(params, first_block + part / sets, warp + part % sets);
      const float2 v =
          __ldcg(reinterpret_cast<const float2*>(base + warp_row * head_dim + channel));
      const float2 s =
          __ldcg(reinterpret_cast<const float2*>(base + kWarpRows * head_dim) + warp_row);
      const float larger_max = fmaxf(max, s.x);
      const float old = exp2f(max - larger_max), fresh = exp2f(s.x - larger_max);
      out = {out.x * old + v.x * fresh, out.y * old + v.y * fresh};
      sum = sum * old + s.y * fresh;
      max = larger_max;
    }
    const int q_head = rows.q_head(row);
    if (params.learned_sinks != nullptr) {
      if (max <= kHidden) max = sum = 0;
      sum += exp2f(params.learned_sinks[q_head] * kLog2OfE - max);
    }
    const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
    bf16_t* dst = params.out + rows.token(row) * params.out_token_stride + q_head * head_dim;
    *reinterpret_cast<uint32_t*>(dst + channel) = ptx::pack_bf16(out.x * inverse, out.y * inverse);
    if (channel == 0 && params.lse != nullptr) {
      params.lse[rows.token(row) * params.num_q_heads + q_head] =
          sum > 0 ? (max + log2f(sum)) * 0.6931471805599453f : -__int_as_float(0x7f800000);
    }
  }
}

template <int kMaxDim, int kRows>
__global__ void __launch_bounds__(kThreads, kMaxDim == 256 ? 1 : 2)
    attend_kernel(const __grid_constant__ AttendParams params) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  __shared__ bool is_last;
  const int split = blockIdx.x % params.num_splits, item = blockIdx.x / params.num_splits;
  const int row_block = item % params.num_row_blocks;
  const int head = item / params.num_row_blocks % params.num_kv_heads;
  const int seq = item / params.num_row_blocks / params.num_kv_heads;
  const Rows rows{params, seq, head, row_block * kRows};
  const bool may_copy = params.copies.rows != nullptr && params.copies.blocks != nullptr;
  const Source source{params, seq, head, params.seq_lens[seq],
                      may_copy ? params.copies.blocks[seq] : -1};
  const Shared s = carve<kRows>(params, memory);
  load_queries<kRows>(params, rows, s);

  RowState<kMaxDim> state;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    state.max[half] = kHidden;
    state.sum[half] = 0;
  }
#pragma unroll
  for (int d = 0; d < kMaxDim / 8; ++d) {
#pragma unroll
    for (int k = 0; k < 4; ++k) state.out[d][k] = 0;
  }

  const WindowRules rules{params.num_queries, params.sink_tokens, params.recent_tokens,
                          params.sliding_window};
  const int first_page =
      window_begin(rules, larger(0, source.length - params.num_queries)) / kPageTokens;
  const int num_pages = (source.length + kPageTokens - 1) / kPageTokens - first_page;
  const int chunk = (larger(0, num_pages) + params.num_splits - 1) / params.num_splits;
  const int end = smaller((split + 1) * chunk, num_pages);
  __shared__ bool holds_raw;  // what s.q has; here, as registers are scarce
  if (threadIdx.x == 0) holds_raw = false;
  for (int i = split * chunk; i < end; ++i) {
    const int page = first_page + i;
    const PageNeeds needs = PageNeeds::of(rules, source.copy_block >= 0, source.length, page);
    if (needs.coded) {
      attend_page<kMaxDim, kRows>(state, params, rows, source, s, page, true, &holds_raw);
    }
    if (needs.exact) {
      attend_page<kMaxDim, kRows>(state, params, rows, source, s, page, false, &holds_raw);
    }
  }

  store_partial<kMaxDim>(state, params);
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = ptx::add_one_acq_rel(params.counters + item) == params.num_splits - 1;
    if (is_last) params.counters[item] = 0;
  }
  __syncthreads();
  if (is_last) combine<kRows>(params, rows, std::int64_t{item} * params.num_splits);
}

}  // namespace oscar::cuda::sm80

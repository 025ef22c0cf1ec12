#include "cuda/attend_units.h"
#include "cuda/testing/device_buffer.h"
#include "cuda/testing/reference.h"

namespace oscar::cuda::testing {
namespace {

constexpr int kThreads = 256;

__device__ double from_bf16(bf16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

__device__ double half_at(const std::uint8_t* p) {
  return from_bf16(static_cast<bf16_t>(p[0] | p[1] << 8));
}

// The definition (format/trellis.h), code by code.
__device__ int trellis_level(const std::uint8_t* base, const DevicePlane& plane, int token,
                             int channel) {
  const auto code = [&](int before) {
    const int word = channel - channel % kTrellisChannels;
    const CodePlace at = plane.low(
        token, word + (channel % kTrellisChannels + kTrellisChannels - before) % kTrellisChannels);
    return base[at.byte] >> at.shift & 3;
  };
  return 4 * (code(0) >> 1) + 2 * ((code(0) ^ code(2)) & 1) + (code(1) & 1);
}

__device__ double coded(const std::uint8_t* base, const DevicePlane& plane, int token,
                        int channel) {
  const CodePlace low = plane.low(token, channel);
  int code = (base[low.byte] >> low.shift) & ((1 << plane.low_bits()) - 1);
  if (plane.bits == 3) {
    const CodePlace high = plane.high(token, channel);
    code += ((base[high.byte] >> high.shift) & 1) << 2;
  }
  if (plane.trellis) code = trellis_level(base, plane, token, channel);
  const int group = channel / plane.group_size;
  const double scale = half_at(base + plane.scale_offset(group, token));
  const double zero = plane.affine    ? half_at(base + plane.zero_offset(group, token))
                      : plane.trellis ? 3.5
                                      : ((1 << plane.bits) - 1) / 2.0;
  return scale * (code - zero);
}

struct Place {
  const AttendParams& params;
  int seq, head, length;

  __device__ bool has_copies() const {
    return params.copies.rows != nullptr && params.copies.blocks[seq] >= 0;
  }
  __device__ const bf16_t* exact(int token, int side) const {
    const ExactCopies& copies = params.copies;
    const int rows = copies.sink_rows + copies.ring_rows;
    const int row = token < copies.sink_rows ? token : copies.sink_rows + token % copies.ring_rows;
    const std::int64_t plane =
        (static_cast<std::int64_t>(copies.blocks[seq]) * params.num_kv_heads + head) * 2 + side;
    return copies.rows + (plane * rows + row) * params.key.head_dim;
  }
  __device__ const std::uint8_t* run(int token) const {
    const std::int64_t page =
        params.block_table[seq * params.block_table_stride + token / kPageTokens];
    return params.pages + page * params.page_stride_bytes + head * params.head_stride_bytes;
  }
};

__device__ double mean_logit(const AttendParams& params, std::int64_t index, int token) {
  const MeanTerm& mean = params.mean;
  const float* c = mean.coefficients + index * (2 * mean.num_pairs + 1);
  double sum = c[2 * mean.num_pairs];
  for (int f = 0; f < mean.num_pairs; ++f) {
    const float* lo = mean.tile + (token % kPageTokens * mean.num_pairs + f) * 2;
    const float* hi = mean.start + (std::int64_t{token / kPageTokens} * mean.num_pairs + f) * 2;
    const double cosine = double(lo[0]) * hi[0] - double(lo[1]) * hi[1];
    const double sine = double(lo[0]) * hi[1] + double(lo[1]) * hi[0];
    sum += c[2 * f] * cosine + c[2 * f + 1] * sine;
  }
  return sum;
}

__device__ double block_reduce(double value, bool is_max) {
  __shared__ double shared[kThreads];
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int o = kThreads / 2; o > 0; o /= 2) {
    if (static_cast<int>(threadIdx.x) < o) {
      const double a = shared[threadIdx.x], b = shared[threadIdx.x + o];
      shared[threadIdx.x] = is_max ? (a > b ? a : b) : a + b;
    }
    __syncthreads();
  }
  const double result = shared[0];
  __syncthreads();
  return result;
}

__global__ void reference_kernel(AttendParams params, double* logits, std::int64_t logits_stride,
                                 double* out, double* lse) {
  const std::int64_t index = blockIdx.x;  // query token · num_q_heads + head
  const int q_head = static_cast<int>(index % params.num_q_heads);
  const std::int64_t token_row = index / params.num_q_heads;
  const int seq = static_cast<int>(token_row / params.num_queries);
  const int head = q_head / (params.num_q_heads / params.num_kv_heads);
  const int length = params.seq_lens[seq];
  const int position =
      length - params.num_queries + static_cast<int>(token_row % params.num_queries);
  const int head_dim = params.key.head_dim;
  const bf16_t* q = params.q + token_row * params.q_token_stride + q_head * head_dim;
  const bf16_t* exact_q =
      params.raw_q == nullptr
          ? q
          : params.raw_q + token_row * params.raw_q_token_stride + q_head * head_dim;
  const Place place{params, seq, head, length};
  const WindowRules rules{params.num_queries, params.sink_tokens, params.recent_tokens,
                          params.sliding_window};
  double* row = logits + index * logits_stride;
  const auto is_exact = [&](int token) {
    return place.has_copies() && reads_exact(rules, position, token);
  };

  double max = -INFINITY;
  for (int token = threadIdx.x; token < length; token += kThreads) {
    double logit = -INFINITY;
    if (token <= position && token >= window_begin(rules, position)) {
      logit = 0;
      const bool exact = is_exact(token);
      const bf16_t* k = exact ? place.exact(token, 0) : nullptr;
      for (int d = 0; d < head_dim; ++d) {
        logit +=
            exact ? from_bf16(exact_q[d]) * from_bf16(k[d])
                  : from_bf16(q[d]) * coded(place.run(token), params.key, token % kPageTokens, d);
      }
      if (!exact && params.mean.coefficients != nullptr) logit += mean_logit(params, index, token);
      logit *= params.scale;
      if (params.soft_cap > 0) logit = params.soft_cap * tanh(logit / params.soft_cap);
    }
    row[token] = logit;
    max = fmax(max, logit);
  }
  max = block_reduce(max, true);
  if (params.learned_sinks != nullptr) max = fmax(max, double(params.learned_sinks[q_head]));
  double sum = 0;
  for (int token = threadIdx.x; token < length; token += kThreads) {
    row[token] = row[token] == -INFINITY ? 0.0 : exp(row[token] - max);
    sum += row[token];
  }
  sum = block_reduce(sum, false);
  if (params.learned_sinks != nullptr) sum += exp(params.learned_sinks[q_head] - max);
  __syncthreads();
  for (int d = threadIdx.x; d < head_dim; d += kThreads) {
    double value = 0;
    for (int token = 0; token < length; ++token) {
      if (row[token] == 0.0) continue;
      value += row[token] * (is_exact(token) ? from_bf16(place.exact(token, 1)[d])
                                             : coded(place.run(token) + params.key.plane_bytes(),
                                                     params.value, token % kPageTokens, d));
    }
    out[index * head_dim + d] = sum > 0 ? value / sum : 0.0;
  }
  if (threadIdx.x == 0) lse[index] = sum > 0 ? max + log(sum) : -INFINITY;
}

}  // namespace

ReferenceResult reference_attend(const AttendParams& params, std::int64_t max_seq_len) {
  const std::size_t rows = std::size_t(params.num_seqs) * std::size_t(params.num_queries) *
                           std::size_t(params.num_q_heads);
  DeviceBuffer<double> logits(rows * std::size_t(max_seq_len)), lse(rows);
  DeviceBuffer<double> out(rows * std::size_t(params.key.head_dim));
  reference_kernel<<<static_cast<unsigned>(rows), kThreads>>>(params, logits.data(), max_seq_len,
                                                              out.data(), lse.data());
  check(cudaGetLastError(), "reference launch");
  check(cudaDeviceSynchronize(), "reference");
  return {out.download(), lse.download()};
}

}  // namespace oscar::cuda::testing

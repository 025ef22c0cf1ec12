// FlashInfer's BF16 paged decode: its tensor-core path (FA2, 16 query rows), from the headers of
// the PyPI wheel flashinfer-python 0.7.2.post1. Their parameter structs are what its C++ templates
// ask for.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/attention/variants.cuh>
#include <flashinfer/fastdiv.cuh>
#include <flashinfer/page.cuh>
#include <numeric>
#include <random>
#include <vector>

#include "cuda/testing/device_buffer.h"

namespace oscar::bench {

using cuda::testing::check;
using cuda::testing::DeviceBuffer;
using bf16 = __nv_bfloat16;
namespace fi = flashinfer;

inline constexpr int kPage = 64, kKvHeads = 8, kHeadDim = 128;
inline constexpr std::size_t kFloatWorkspace = std::size_t{512} << 20,
                             kIntWorkspace = std::size_t{64} << 20;

struct Params {
  using DTypeQ = bf16;
  using DTypeKV = bf16;
  using DTypeO = bf16;
  using IdType = int32_t;
  bf16* q;
  fi::paged_kv_t<bf16, int32_t> paged_kv;
  int32_t* q_indptr;
  bf16* o;
  float* lse;
  fi::uint_fastdiv group_size;
  uint8_t* maybe_custom_mask;
  int32_t* maybe_mask_indptr;
  float* maybe_alibi_slopes;
  float logits_soft_cap, sm_scale, rope_rcp_scale, rope_rcp_theta;
  uint32_t num_qo_heads;
  int32_t q_stride_n, q_stride_h;
  uint32_t k_sf_stride_page, k_sf_stride_n, k_sf_stride_h, v_sf_stride_page, v_sf_stride_n,
      v_sf_stride_h;
  int32_t window_left;
  int32_t *request_indices, *qo_tile_indices, *kv_tile_indices, *merge_indptr, *o_indptr;
  bool* block_valid_mask;
  int32_t* kv_chunk_size_ptr;
  uint32_t max_total_num_rows;
  uint32_t* total_num_rows;
  uint32_t padded_batch_size;
  bool partition_kv;
  __host__ __device__ __forceinline__ uint32_t get_qo_len(uint32_t b) const {
    return q_indptr[b + 1] - q_indptr[b];
  }
  __host__ __device__ __forceinline__ uint32_t get_kv_len(uint32_t b) const {
    return paged_kv.get_length(b);
  }
};
using Variant = fi::DefaultAttention<false, false, false, false>;

// One shape: its page table (in random order), plan and workspaces.
class FlashInferDecode {
 public:
  FlashInferDecode(int num_q_heads, int batch, int context)
      : num_q_heads_(num_q_heads), batch_(batch) {
    const int pages_per_seq = (context + kPage - 1) / kPage;
    order_.resize(std::size_t(pages_per_seq) * std::size_t(batch));
    std::vector<int> indptr(batch + 1), last(batch), q_indptr(batch + 1);
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), std::mt19937(5));
    for (int i = 0; i <= batch; ++i) {
      indptr[i] = i * pages_per_seq;
      q_indptr[i] = i;
    }
    for (int& x : last) x = context - (pages_per_seq - 1) * kPage;
    d_order_ = DeviceBuffer<int>(order_);
    d_indptr_ = DeviceBuffer<int>(indptr);
    d_last_ = DeviceBuffer<int>(last);
    d_q_indptr_ = DeviceBuffer<int>(q_indptr);
    floats_ = DeviceBuffer<char>(kFloatWorkspace);
    ints_ = DeviceBuffer<char>(kIntWorkspace);
    check(cudaMallocHost(reinterpret_cast<void**>(&host_), kIntWorkspace), "pinned memory");
    check(fi::PrefillPlan<int32_t>(floats_.data(), kFloatWorkspace, ints_.data(), host_,
                                   kIntWorkspace, plan_, q_indptr.data(), indptr.data(), batch,
                                   batch, num_q_heads, kKvHeads, kHeadDim, kHeadDim, kPage, false,
                                   2, -1, -1, false, 0, 0, 0, 2),
          "FlashInfer plan");
    check(cudaDeviceSynchronize(), "FlashInfer plan");
  }
  ~FlashInferDecode() { cudaFreeHost(host_); }
  FlashInferDecode(const FlashInferDecode&) = delete;
  FlashInferDecode& operator=(const FlashInferDecode&) = delete;

  std::size_t num_pages() const { return order_.size(); }
  int page_of(int seq, int page) const {
    return order_[std::size_t(seq) * (order_.size() / std::size_t(batch_)) + std::size_t(page)];
  }
  // k, v: [num_pages][kKvHeads][kPage][kHeadDim]; q, out: [batch][num_q_heads][kHeadDim], q's rows
  // q_stride elements apart.
  void launch(const bf16* q, std::int64_t q_stride, bf16* k, bf16* v, bf16* out, bool overlap,
              cudaStream_t stream) {
    Params p;
    std::memset(static_cast<void*>(&p), 0, sizeof p);
    p.q = const_cast<bf16*>(q);
    p.paged_kv =
        fi::paged_kv_t<bf16, int32_t>(kKvHeads, kPage, kHeadDim, batch_, fi::QKVLayout::kHND, k, v,
                                      d_order_.data(), d_indptr_.data(), d_last_.data());
    p.q_indptr = d_q_indptr_.data();
    p.o = out;
    p.group_size = fi::uint_fastdiv(num_q_heads_ / kKvHeads);
    p.sm_scale = 1 / std::sqrt(float{kHeadDim});
    p.rope_rcp_scale = 1;
    p.rope_rcp_theta = 1e-4f;
    p.num_qo_heads = num_q_heads_;
    p.q_stride_n = static_cast<int32_t>(q_stride);
    p.q_stride_h = kHeadDim;
    p.window_left = -1;
    p.request_indices = at<int>(plan_.request_indices_offset);
    p.qo_tile_indices = at<int>(plan_.qo_tile_indices_offset);
    p.kv_tile_indices = at<int>(plan_.kv_tile_indices_offset);
    p.o_indptr = at<int>(plan_.o_indptr_offset);
    p.kv_chunk_size_ptr = at<int>(plan_.kv_chunk_size_ptr_offset);
    bf16* partial_out = nullptr;
    float* partial_lse = nullptr;
    if (plan_.split_kv) {
      p.merge_indptr = at<int>(plan_.merge_indptr_offset);
      partial_out = fi::GetPtrFromBaseOffset<bf16>(floats_.data(), plan_.v_offset);
      partial_lse = fi::GetPtrFromBaseOffset<float>(floats_.data(), plan_.s_offset);
    }
    p.padded_batch_size = plan_.padded_batch_size;
    p.max_total_num_rows = plan_.total_num_rows;
    check((fi::BatchPrefillWithPagedKVCacheDispatched<true, 16, kHeadDim, kHeadDim,
                                                      fi::PosEncodingMode::kNone, false,
                                                      fi::MaskMode::kNone, Variant, Params>(
              p, partial_out, partial_lse, overlap, stream)),
          "FlashInfer launch");
  }

 private:
  template <typename T>
  T* at(std::int64_t offset) {
    return fi::GetPtrFromBaseOffset<T>(ints_.data(), offset);
  }

  int num_q_heads_, batch_;
  std::vector<int> order_;
  DeviceBuffer<int> d_order_, d_indptr_, d_last_, d_q_indptr_;
  DeviceBuffer<char> floats_, ints_;
  char* host_ = nullptr;
  fi::PrefillPlanInfo plan_;
};

}  // namespace oscar::bench

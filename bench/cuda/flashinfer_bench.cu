// FlashInfer's BF16 paged decode on the same shapes: its tensor-core path (FA2, 16 query rows),
// from the headers of the PyPI wheel flashinfer-python 0.7.2.post1. Their parameter structs are
// what its C++ templates ask for.
//
//   oscar_cuda_flashinfer_bench [--json FILE] [--commit TEXT]
#include <cuda_bf16.h>

#include <cmath>
#include <cstring>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/attention/variants.cuh>
#include <flashinfer/fastdiv.cuh>
#include <flashinfer/page.cuh>
#include <numeric>
#include <random>

#include "../bench/cuda/timing.h"

namespace oscar::bench {
namespace {

using cuda::testing::check;
using cuda::testing::DeviceBuffer;
using bf16 = __nv_bfloat16;
namespace fi = flashinfer;

constexpr int kPage = 64, kKvHeads = 8, kHeadDim = 128;
constexpr std::size_t kFloatWorkspace = std::size_t{512} << 20,
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

__global__ void fill(bf16* p, std::size_t n, uint32_t seed) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < n;
       i += std::size_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + seed;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    p[i] = __float2bfloat16((((x & 0xffff) + (x >> 16)) / 65536.0f - 1) * 2.4f);
  }
}

void run_shape(int num_q_heads, int batch, int context, char* floats, char* ints, char* host,
               Report& report) {
  const int pages_per_seq = (context + kPage - 1) / kPage;
  const std::size_t pages = std::size_t(pages_per_seq) * batch;
  const std::size_t elements = pages * kKvHeads * kPage * kHeadDim;
  const double layer_bytes = 4.0 * elements;
  const int layers = layer_bytes > 6e9 ? 1 : std::max(2, static_cast<int>(1.2e9 / layer_bytes) + 1);
  DeviceBuffer<bf16> k(elements * layers), v(elements * layers);
  DeviceBuffer<bf16> q(std::size_t(batch) * num_q_heads * kHeadDim), o(q.size());
  fill<<<2048, 256>>>(k.data(), k.size(), 1);
  fill<<<2048, 256>>>(v.data(), v.size(), 77);
  fill<<<64, 256>>>(q.data(), q.size(), 3);
  std::vector<int> order(pages), indptr(batch + 1), last(batch), q_indptr(batch + 1);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(5));
  for (int i = 0; i <= batch; ++i) {
    indptr[i] = i * pages_per_seq;
    q_indptr[i] = i;
  }
  for (int& x : last) x = context - (pages_per_seq - 1) * kPage;
  DeviceBuffer<int> d_order(order), d_indptr(indptr), d_last(last), d_q_indptr(q_indptr);
  fi::PrefillPlanInfo plan;
  check(
      fi::PrefillPlan<int32_t>(floats, kFloatWorkspace, ints, host, kIntWorkspace, plan,
                               q_indptr.data(), indptr.data(), batch, batch, num_q_heads, kKvHeads,
                               kHeadDim, kHeadDim, kPage, false, 2, -1, -1, false, 0, 0, 0, 2),
      "FlashInfer plan");
  const auto at = [ints](auto* type, int64_t offset) {
    return fi::GetPtrFromBaseOffset<std::remove_pointer_t<decltype(type)>>(ints, offset);
  };
  const auto launch = [&](int index, bool overlap, cudaStream_t stream) {
    const std::size_t layer = index % layers;
    Params p;
    std::memset(static_cast<void*>(&p), 0, sizeof p);
    p.q = q.data();
    p.paged_kv = fi::paged_kv_t<bf16, int32_t>(
        kKvHeads, kPage, kHeadDim, batch, fi::QKVLayout::kHND, k.data() + layer * elements,
        v.data() + layer * elements, d_order.data(), d_indptr.data(), d_last.data());
    p.q_indptr = d_q_indptr.data();
    p.o = o.data();
    p.group_size = fi::uint_fastdiv(num_q_heads / kKvHeads);
    p.sm_scale = 1 / std::sqrt(float{kHeadDim});
    p.rope_rcp_scale = 1;
    p.rope_rcp_theta = 1e-4f;
    p.num_qo_heads = num_q_heads;
    p.q_stride_n = num_q_heads * kHeadDim;
    p.q_stride_h = kHeadDim;
    p.window_left = -1;
    p.request_indices = at(static_cast<int*>(nullptr), plan.request_indices_offset);
    p.qo_tile_indices = at(static_cast<int*>(nullptr), plan.qo_tile_indices_offset);
    p.kv_tile_indices = at(static_cast<int*>(nullptr), plan.kv_tile_indices_offset);
    p.o_indptr = at(static_cast<int*>(nullptr), plan.o_indptr_offset);
    p.kv_chunk_size_ptr = at(static_cast<int*>(nullptr), plan.kv_chunk_size_ptr_offset);
    bf16* partial_out = nullptr;
    float* partial_lse = nullptr;
    if (plan.split_kv) {
      p.merge_indptr = at(static_cast<int*>(nullptr), plan.merge_indptr_offset);
      partial_out = fi::GetPtrFromBaseOffset<bf16>(floats, plan.v_offset);
      partial_lse = fi::GetPtrFromBaseOffset<float>(floats, plan.s_offset);
    }
    p.padded_batch_size = plan.padded_batch_size;
    p.max_total_num_rows = plan.total_num_rows;
    check((fi::BatchPrefillWithPagedKVCacheDispatched<true, 16, kHeadDim, kHeadDim,
                                                      fi::PosEncodingMode::kNone, false,
                                                      fi::MaskMode::kNone, Variant, Params>(
              p, partial_out, partial_lse, overlap, stream)),
          "FlashInfer launch");
  };
  const int launches = std::max(4, std::min(60, static_cast<int>(20e9 / layer_bytes)));
  for (const bool overlap : {false, true}) {
    if (overlap && batch > 1) continue;
    for (const Load load : {Load::kSustained, Load::kBurst}) {
      if (overlap && load == Load::kBurst) continue;
      const Timing timing = time_launches(
          [&](int i, cudaStream_t stream) { launch(i, overlap, stream); }, launches, load);
      report.add("flashinfer",
                 std::string("fa2 tensor cores paged") + (overlap ? " programmatic" : "") +
                     (load == Load::kBurst ? " burst" : ""),
                 {num_q_heads, kKvHeads, kHeadDim, batch, context}, timing,
                 double(batch) * context * kKvHeads * 4 * kHeadDim / timing.median_us * 1e-3, -1);
    }
  }
}

int run(int argc, char** argv) {
  std::string json, commit = "unknown";
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) json = argv[i + 1];
    if (std::strcmp(argv[i], "--commit") == 0) commit = argv[i + 1];
  }
  DeviceBuffer<char> floats(kFloatWorkspace), ints(kIntWorkspace);
  char* host = nullptr;
  check(cudaMallocHost(reinterpret_cast<void**>(&host), kIntWorkspace), "pinned memory");
  Report report;
  for (const auto& [batch, context] :
       {std::pair{1, 30000}, std::pair{1, 60000}, std::pair{1, 100000}, std::pair{8, 30000},
        std::pair{8, 100000}, std::pair{32, 30000}, std::pair{32, 100000}}) {
    for (const int num_q_heads : {32, 64}) {
      run_shape(num_q_heads, batch, context, floats.data(), ints.data(), host, report);
    }
  }
  cudaFreeHost(host);
  if (!json.empty()) report.write(json, commit);
  return 0;
}

}  // namespace
}  // namespace oscar::bench

int main(int argc, char** argv) {
  try {
    return oscar::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

// FlashInfer's BF16 paged decode on the shapes of decode_bench.
//
//   oscar_cuda_flashinfer_bench [--json FILE] [--commit TEXT]
#include "../bench/cuda/flashinfer_decode.cuh"
#include "../bench/cuda/timing.h"

namespace oscar::bench {
namespace {

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

void run_shape(int num_q_heads, int batch, int context, Report& report) {
  FlashInferDecode decode(num_q_heads, batch, context);
  const std::size_t elements = decode.num_pages() * kKvHeads * kPage * kHeadDim;
  const double layer_bytes = 4.0 * elements;
  const int layers = layer_bytes > 6e9 ? 1 : std::max(2, static_cast<int>(1.2e9 / layer_bytes) + 1);
  DeviceBuffer<bf16> k(elements * layers), v(elements * layers);
  DeviceBuffer<bf16> q(std::size_t(batch) * num_q_heads * kHeadDim), o(q.size());
  fill<<<2048, 256>>>(k.data(), k.size(), 1);
  fill<<<2048, 256>>>(v.data(), v.size(), 77);
  fill<<<64, 256>>>(q.data(), q.size(), 3);
  const auto launch = [&](int index, bool overlap, cudaStream_t stream) {
    const std::size_t layer = index % layers;
    decode.launch(q.data(), num_q_heads * kHeadDim, k.data() + layer * elements,
                  v.data() + layer * elements, o.data(), overlap, stream);
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
  Report report;
  for (const auto& [batch, context] :
       {std::pair{1, 30000}, std::pair{1, 60000}, std::pair{1, 100000}, std::pair{8, 30000},
        std::pair{8, 100000}, std::pair{32, 30000}, std::pair{32, 100000}}) {
    for (const int num_q_heads : {32, 64}) {
      run_shape(num_q_heads, batch, context, report);
    }
  }
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

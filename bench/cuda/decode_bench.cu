// Decode attention against the read ceiling: layers rotated past the L2, windows of 64 + 256 exact
// tokens included.
//
//   oscar_cuda_decode_bench [--json FILE] [--commit TEXT] [--quick] [--trellis] [--shape
//   Q_HEADS,BATCH,CONTEXT
//   [--mean PAIRS] [--bits K,V] [--symmetric | --trellis] [--queries N] [--generic]]
//
// --trellis without a shape: the lines of trellis codes alone, beside those of symmetric ones.
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "../bench/cuda/timing.h"
#include "cuda/attend.h"
#include "cuda/testing/random_case.h"
#include "cuda/testing/reference.h"

namespace oscar::bench {
namespace {

using cuda::testing::check;
using cuda::testing::DeviceBuffer;

constexpr std::int64_t kRotatedBytes = std::int64_t{1200} << 20;  // past a 60 MB L2 many times
constexpr int kSinks = 64, kRecent = 256;

__device__ std::uint32_t mix(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}

// Random codes; scales in 0.4 … 1, zero points around the middle of the codes.
__global__ void fill_runs(std::uint8_t* runs, std::int64_t num_runs, cuda::DevicePlane key,
                          cuda::DevicePlane value, std::uint32_t seed) {
  const int run_bytes = key.plane_bytes() + value.plane_bytes();
  for (std::int64_t run = blockIdx.x; run < num_runs; run += gridDim.x) {
    std::uint8_t* bytes = runs + run * run_bytes;
    for (int i = threadIdx.x; i < run_bytes; i += blockDim.x) {
      bytes[i] = static_cast<std::uint8_t>(mix(static_cast<std::uint32_t>(run) * 9001u + i + seed));
    }
    __syncthreads();
    for (int side = 0; side < 2; ++side) {
      const cuda::DevicePlane& plane = side ? value : key;
      std::uint8_t* base = bytes + (side ? key.plane_bytes() : 0);
      const int count = plane.num_groups() * cuda::kPageTokens;
      for (int i = threadIdx.x; i < count; i += blockDim.x) {
        const int group = i / cuda::kPageTokens, token = i % cuda::kPageTokens;
        const std::uint32_t r = mix(static_cast<std::uint32_t>(run) * 77u + i + side + seed);
        const float levels = (1 << plane.level_bits()) - 1;
        const float scale = (0.4f + 0.6f * (r & 0xffff) / 65536.0f) * 3 / levels;
        const float zero = levels * (0.5f + 0.2f * ((r >> 16) / 65536.0f - 0.5f));
        *reinterpret_cast<std::uint16_t*>(base + plane.scale_offset(group, token)) =
            __float_as_uint(scale) >> 16;
        if (plane.affine) {
          *reinterpret_cast<std::uint16_t*>(base + plane.zero_offset(group, token)) =
              __float_as_uint(zero) >> 16;
        }
      }
    }
    __syncthreads();
  }
}

__global__ void fill_rows(bf16_t* rows, std::int64_t count, float spread, std::uint32_t seed) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const std::uint32_t a = mix(static_cast<std::uint32_t>(i) + seed), b = mix(a + 1);
    const float u = ((a >> 8) + 1) * (1.0f / 16777217.0f), v = (b >> 8) * (1.0f / 16777216.0f);
    rows[i] = __float_as_uint(spread * sqrtf(-2 * logf(u)) * cosf(6.2831853f * v)) >> 16;
  }
}

// Sums all words: as fast as memory can be read.
__global__ void __launch_bounds__(512)
    read_all(const uint4* p, std::int64_t n, std::uint32_t* out) {
  std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  std::uint32_t sum = 0;
  for (; i + 3 * step < n; i += 4 * step) {
    const uint4 a = __ldcs(p + i), b = __ldcs(p + i + step), c = __ldcs(p + i + 2 * step),
                d = __ldcs(p + i + 3 * step);
    sum ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^
           d.w;
  }
  for (; i < n; i += step) sum ^= __ldcs(p + i).x;
  if (sum == 0x1234567u) *out = sum;
}

struct Bench {
  Shape shape;
  Codebook codebook;
  bool has_copies;
  int num_queries = 1;
  int mean_pairs = 0;       // of the key mean; 0: none
  bool is_generic = false;  // by the generic kernel, whatever serves
};

void check_status(const cuda::Status& status) {
  if (!status.ok()) throw Error(ErrorCode::kUnsupported, status.message);
}

// One layer's buffers times the rotation.
class Layers {
 public:
  Layers(const Bench& bench, const cuda::DeviceInfo& device) : bench_(bench) {
    const Shape& s = bench.shape;
    const int group = std::min(s.head_dim, 128);
    attend_.num_seqs = s.batch;
    attend_.num_queries = bench.num_queries;
    attend_.num_q_heads = s.num_q_heads;
    attend_.num_kv_heads = s.num_kv_heads;
    attend_.key = {s.head_dim, {s.k_bits, group, bench.codebook}};
    attend_.value = {s.head_dim, {s.v_bits, group, bench.codebook}};
    attend_.max_seq_len = s.context;
    attend_.has_copies = bench.has_copies;
    attend_.sink_tokens = bench.has_copies ? kSinks : 0;
    attend_.recent_tokens = bench.has_copies ? kRecent : 0;
    attend_.has_mean = bench.mean_pairs > 0;
    attend_.mean_pairs = bench.mean_pairs;
    plan_ = bench.is_generic ? cuda::plan_attend(attend_, device, cuda::AttendKernel::kGeneric)
                             : cuda::plan_attend(attend_, device);

    params_.key = cuda::device_plane(attend_.key, cuda::Side::kKey);
    params_.value = cuda::device_plane(attend_.value, cuda::Side::kValue);
    const int run_bytes = params_.key.plane_bytes() + params_.value.plane_bytes();
    const std::int64_t pages_per_seq = (s.context + 63) / 64, pages = pages_per_seq * s.batch;
    layer_bytes_ = pages * s.num_kv_heads * run_bytes;
    num_layers_ = static_cast<int>(
        std::max<std::int64_t>(1, std::min<std::int64_t>(60, kRotatedBytes / layer_bytes_ + 1)));
    pages_ = DeviceBuffer<std::uint8_t>(static_cast<std::size_t>(layer_bytes_ * num_layers_));
    fill_runs<<<2048, 128>>>(pages_.data(), pages * s.num_kv_heads * num_layers_, params_.key,
                             params_.value, 17);
    std::vector<std::int32_t> table(static_cast<std::size_t>(pages));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937(5));
    table_ = DeviceBuffer<std::int32_t>(table);
    lengths_ = DeviceBuffer<std::int32_t>(std::vector<std::int32_t>(s.batch, s.context));
    const std::size_t rows = std::size_t(s.batch) * bench.num_queries * s.num_q_heads;
    q_ = DeviceBuffer<bf16_t>(rows * s.head_dim);
    out_ = DeviceBuffer<bf16_t>(rows * s.head_dim);
    lse_ = DeviceBuffer<float>(rows);
    fill_rows<<<256, 256>>>(q_.data(), static_cast<std::int64_t>(q_.size()), 2.0f, 3);
    ring_ = kRecent + bench.num_queries - 1;
    copy_elements_ = std::int64_t{s.batch} * s.num_kv_heads * 2 * (kSinks + ring_) * s.head_dim;
    if (bench.has_copies) {
      copies_ = DeviceBuffer<bf16_t>(static_cast<std::size_t>(copy_elements_ * num_layers_));
      fill_rows<<<1024, 256>>>(copies_.data(), static_cast<std::int64_t>(copies_.size()), 1.0f, 9);
      std::vector<std::int32_t> blocks(static_cast<std::size_t>(s.batch));
      std::iota(blocks.begin(), blocks.end(), 0);
      blocks_ = DeviceBuffer<std::int32_t>(blocks);
    }
    if (bench.mean_pairs > 0) {
      std::mt19937 random(3);
      std::normal_distribution<float> normal(0.0f, 2.0f);
      const int pairs = bench.mean_pairs;
      std::vector<float> coefficients(rows * (2 * pairs + 1)), tile, start;
      for (float& c : coefficients) c = normal(random);
      for (int f = 0; f < cuda::kPageTokens * pairs; ++f) {
        const double angle = std::pow(1e-6, f % pairs / double(pairs)) * (f / pairs);
        tile.push_back(static_cast<float>(std::cos(angle)));
        tile.push_back(static_cast<float>(std::sin(angle)));
      }
      for (std::int64_t f = 0; f < pages_per_seq * pairs; ++f) {
        const double angle = std::pow(1e-6, double(f % pairs) / pairs) * double(f / pairs) * 64;
        start.push_back(static_cast<float>(std::cos(angle)));
        start.push_back(static_cast<float>(std::sin(angle)));
      }
      coefficients_ = DeviceBuffer<float>(coefficients);
      tile_ = DeviceBuffer<float>(tile);
      start_ = DeviceBuffer<float>(start);
      params_.mean = {coefficients_.data(), tile_.data(), start_.data(), pairs};
    }
    workspace_ = DeviceBuffer<std::uint8_t>(plan_.workspace_bytes);
    check_status(cuda::prepare_attend(plan_, workspace_.data(), workspace_.size(), nullptr));
    check(cudaDeviceSynchronize(), "fill");

    cuda::AttendParams& p = params_;
    p.page_stride_bytes = std::int64_t{run_bytes} * s.num_kv_heads;
    p.head_stride_bytes = run_bytes;
    p.num_pages = pages;
    p.block_table = table_.data();
    p.block_table_stride = pages_per_seq;
    p.seq_lens = lengths_.data();
    p.q = q_.data();
    p.out = out_.data();
    p.lse = lse_.data();
    p.q_token_stride = p.out_token_stride = std::int64_t{s.num_q_heads} * s.head_dim;
    p.sink_tokens = attend_.sink_tokens;
    p.recent_tokens = attend_.recent_tokens;
    p.num_seqs = s.batch;
    p.num_queries = bench.num_queries;
    p.num_q_heads = s.num_q_heads;
    p.num_kv_heads = s.num_kv_heads;
    p.scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  }

  cuda::AttendParams params(int launch) const {
    cuda::AttendParams p = params_;
    const int layer = launch % num_layers_;
    p.pages = pages_.data() + layer * layer_bytes_;
    if (bench_.has_copies) {
      p.copies = {copies_.data() + layer * copy_elements_, blocks_.data(), kSinks, ring_};
    }
    return p;
  }
  void launch(int index, bool overlap, cudaStream_t stream) const {
    cuda::AttendParams p = params(index);
    p.overlap_previous = overlap;
    check_status(cuda::run_attend(plan_, p, workspace_.data(), workspace_.size(), stream));
  }
  double error() {
    out_.fill(0xff);
    launch(0, false, nullptr);
    check(cudaDeviceSynchronize(), "attend");
    const auto truth = cuda::testing::reference_attend(params(0), bench_.shape.context);
    std::vector<float> out;
    for (const bf16_t bits : out_.download()) out.push_back(bf16_to_float(bits));
    return cuda::testing::relative_error(out, truth.out);
  }
  // Bytes one launch must read.
  double bytes() const {
    const Shape& s = bench_.shape;
    const double run = params_.key.plane_bytes() + params_.value.plane_bytes();
    const int exact = bench_.has_copies ? kSinks + kRecent : 0;  // of the last query
    return double(s.batch) * s.num_kv_heads *
           ((s.context - exact) * run / 64 + exact * 4.0 * s.head_dim);
  }
  // Multiplications and additions of both products, masked pairs left out.
  double operations() const {
    const Shape& s = bench_.shape;
    const double pairs =
        bench_.num_queries * (s.context - 0.5 * (bench_.num_queries - 1));  // of a sequence
    return 4.0 * s.batch * s.num_q_heads * s.head_dim * pairs;
  }
  const cuda::AttendPlan& plan() const { return plan_; }
  int num_launches() const {
    // A chunk of queries computes far longer than it reads.
    const double bytes = static_cast<double>(layer_bytes_) * (bench_.num_queries > 8 ? 50 : 1);
    return std::max(4, std::min(80, static_cast<int>(8e9 / bytes)));
  }

 private:
  Bench bench_;
  cuda::AttendShape attend_;
  cuda::AttendPlan plan_;
  cuda::AttendParams params_;
  std::int64_t layer_bytes_ = 0, copy_elements_ = 0;
  int num_layers_ = 1, ring_ = 0;
  DeviceBuffer<std::uint8_t> pages_, workspace_;
  DeviceBuffer<std::int32_t> table_, lengths_, blocks_;
  DeviceBuffer<bf16_t> q_, out_, copies_;
  DeviceBuffer<float> lse_, coefficients_, tile_, start_;
};

void run_oscar(const Bench& bench, const cuda::DeviceInfo& device, bool with_error, bool bursts,
               Report& report) {
  Layers layers(bench, device);
  std::string variant = cuda::kernel_name(layers.plan().kernel);
  variant += std::string(" ") + codebook_name(bench.codebook);
  if (bench.has_copies) variant += " window 64+256";
  if (bench.num_queries > 1) variant += " chunk of " + std::to_string(bench.num_queries);
  if (bench.mean_pairs > 0) variant += " mean " + std::to_string(bench.mean_pairs) + " pairs";
  const double error = with_error ? layers.error() : -1;
  for (const bool overlap : {false, true}) {
    if (overlap && (bench.shape.batch > 8 || bench.num_queries > 1)) continue;
    const auto launch = [&](int i, cudaStream_t stream) { layers.launch(i, overlap, stream); };
    for (const Load load : {Load::kSustained, Load::kBurst}) {
      if (load == Load::kBurst && (!bursts || overlap)) continue;
      const Timing timing = time_launches(launch, layers.num_launches(), load);
      if (bench.num_queries > 1) {
        std::printf("%.1f TFLOP/s: ", layers.operations() / timing.median_us * 1e-6);
      }
      report.add(
          "oscar",
          variant + (overlap ? " programmatic" : "") + (load == Load::kBurst ? " burst" : ""),
          bench.shape, timing, layers.bytes() / timing.median_us * 1e-3, error);
    }
  }
}

void run_read(double megabytes, int num_sms, Report& report) {
  const std::int64_t n = static_cast<std::int64_t>(megabytes * 1e6 / 16);
  const int num_buffers = static_cast<int>(std::max(1.0, std::min(64.0, 1300 / megabytes)));
  DeviceBuffer<uint4> buffer(static_cast<std::size_t>(n * num_buffers));
  DeviceBuffer<std::uint32_t> out(1);
  buffer.fill(7);
  const auto launch = [&](int i, cudaStream_t stream) {
    read_all<<<num_sms * 2, 512, 0, stream>>>(buffer.data() + i % num_buffers * n, n, out.data());
  };
  const Timing timing = time_launches(
      launch, std::max(4, std::min(64, static_cast<int>(3e4 / megabytes))), Load::kSustained);
  Shape shape{0, 0, 0, 0, static_cast<int>(megabytes), 0, 0};
  report.add("read", "megabytes in context", shape, timing, 16e-3 * n / timing.median_us, -1);
}

// Trellis codes, each line beside that of the symmetric codebook, whose pages are as large.
void run_trellis(const cuda::DeviceInfo& device, Report& report) {
  const auto run_both = [&](const Shape& shape, int num_queries, int pairs) {
    const bool with_error = shape.batch == 1 && shape.context <= 32768;
    for (const Codebook codebook : {Codebook::kSymmetric, Codebook::kTrellis}) {
      run_oscar({shape, codebook, true, num_queries, pairs}, device, with_error, shape.batch == 32,
                report);
    }
  };
  for (const int num_q_heads : {32, 64}) {
    for (const auto& [batch, context] :
         {std::pair{1, 30000}, std::pair{1, 100000}, std::pair{8, 100000}, std::pair{32, 100000}}) {
      run_both({num_q_heads, 8, 128, batch, context, 2, 2}, 1, 0);
    }
  }
  for (const int head_dim : {64, 256}) run_both({32, 8, head_dim, 32, 100000, 2, 2}, 1, 0);
  for (const int batch : {8, 32}) run_both({32, 8, 128, batch, 100000, 2, 2, true}, 1, 8);
  run_both({32, 8, 128, 1, 32768, 2, 2}, 512, 0);
}

int run(int argc, char** argv) {
  std::string json, commit = "unknown";
  bool quick = false;
  Shape only{0, 8, 128, 0, 0, 2, 2};
  int only_pairs = 0, only_queries = 1;
  bool only_generic = false;
  Codebook only_codebook = Codebook::kAffine;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) quick = true;
    if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) json = argv[++i];
    if (std::strcmp(argv[i], "--shape") == 0 && i + 1 < argc) {
      if (std::sscanf(argv[++i], "%d,%d,%d", &only.num_q_heads, &only.batch, &only.context) != 3) {
        throw Error(ErrorCode::kInvalidArgument, "--shape wants Q_HEADS,BATCH,CONTEXT");
      }
    }
    if (std::strcmp(argv[i], "--bits") == 0 && i + 1 < argc) {
      if (std::sscanf(argv[++i], "%d,%d", &only.k_bits, &only.v_bits) != 2) {
        throw Error(ErrorCode::kInvalidArgument, "--bits wants K,V");
      }
    }
    if (std::strcmp(argv[i], "--symmetric") == 0) only_codebook = Codebook::kSymmetric;
    if (std::strcmp(argv[i], "--trellis") == 0) only_codebook = Codebook::kTrellis;
    if (std::strcmp(argv[i], "--generic") == 0) only_generic = true;
    if (std::strcmp(argv[i], "--queries") == 0 && i + 1 < argc) only_queries = std::atoi(argv[++i]);
    if (std::strcmp(argv[i], "--mean") == 0 && i + 1 < argc) only_pairs = std::atoi(argv[++i]);
    if (std::strcmp(argv[i], "--commit") == 0 && i + 1 < argc) commit = argv[++i];
  }
  const cuda::DeviceInfo device = cuda::device_info(0);
  Report report;
  if (only.batch > 0) {
    only.mean_term = only_pairs > 0;
    run_oscar({only, only_codebook, true, only_queries, only_pairs, only_generic}, device, false,
              true, report);
    return 0;
  }
  if (only_codebook == Codebook::kTrellis) {
    run_read(4000.0, device.num_sms, report);
    run_trellis(device, report);
    if (!json.empty()) report.write(json, commit);
    return 0;
  }
  for (const double megabytes : {17.3, 57.6, 410.0, 4000.0}) {
    run_read(megabytes, device.num_sms, report);
  }
  const std::vector<std::pair<int, int>> sizes = {{1, 30000},  {1, 60000},  {1, 100000}, {8, 30000},
                                                  {8, 100000}, {32, 30000}, {32, 100000}};
  for (const int num_q_heads : {32, 64}) {
    for (const auto& [batch, context] : sizes) {
      const Shape shape{num_q_heads, 8, 128, batch, context, 2, 2};
      run_oscar({shape, Codebook::kAffine, true}, device, batch == 1 && context == 30000,
                batch != 1, report);
      run_oscar({shape, Codebook::kSymmetric, true}, device, batch == 1 && context == 30000, false,
                report);
      run_oscar({shape, Codebook::kTrellis, true}, device, batch == 1 && context == 30000, false,
                report);
    }
  }
  if (!quick) {
    for (const auto& [batch, context] :
         {std::pair{1, 100000}, std::pair{8, 100000}, std::pair{32, 100000}}) {
      for (const auto& [q_heads, head_dim] :
           {std::pair{32, 64}, std::pair{32, 256}, std::pair{8, 128}}) {
        run_oscar({{q_heads, 8, head_dim, batch, context, 2, 2}, Codebook::kAffine, true}, device,
                  false, false, report);
      }
      for (const int head_dim : {64, 256}) {
        run_oscar({{32, 8, head_dim, batch, context, 2, 2}, Codebook::kTrellis, true}, device,
                  false, false, report);
      }
      for (const auto& [k_bits, v_bits] : {std::pair{3, 2}, std::pair{4, 2}, std::pair{4, 4}}) {
        run_oscar({{32, 8, 128, batch, context, k_bits, v_bits}, Codebook::kSymmetric, true},
                  device, batch == 1, false, report);
      }
    }
    for (const auto& [batch, context] : {std::pair{8, 100000}, std::pair{32, 100000}}) {
      for (const int pairs : {8, 16, 32, 64}) {
        run_oscar({{32, 8, 128, batch, context, 2, 2, true}, Codebook::kSymmetric, true, 1, pairs},
                  device, batch == 8, false, report);
      }
      run_oscar({{32, 8, 128, batch, context, 2, 2, true}, Codebook::kTrellis, true, 1, 8}, device,
                batch == 8, false, report);
    }
    // Prefill over history, and a speculative verify.
    for (const auto& [context, queries] :
         {std::pair{32768, 8}, std::pair{32768, 512}, std::pair{32768, 2048}}) {
      const Shape shape{32, 8, 128, 1, context, 2, 2};
      run_oscar({shape, Codebook::kAffine, true, queries}, device, queries > 8, false, report);
      if (queries == 512) {
        run_oscar({shape, Codebook::kTrellis, true, queries}, device, true, false, report);
        run_oscar({shape, Codebook::kAffine, true, queries, 0, true}, device, false, false, report);
      }
    }
    run_oscar({{32, 8, 128, 1, 1000000, 2, 2}, Codebook::kAffine, true}, device, true, false,
              report);
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

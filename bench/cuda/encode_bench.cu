// Encoding of keys and values: a prefill of many tokens and a decode step of 32 sequences.
//
//   oscar_cuda_encode_bench [--json FILE] [--commit TEXT] [--only TEXT]
//
// --only: the variants that begin with TEXT, such as "encode rotated rows affine".
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "../bench/cuda/timing.h"
#include "cuda/encode.h"

namespace oscar::bench {
namespace {

using cuda::testing::DeviceBuffer;

constexpr int kHeads = 8, kHeadDim = 128;

__global__ void fill(bf16_t* rows, std::int64_t count) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    std::uint32_t x = static_cast<std::uint32_t>(i) * 2654435761u;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    // Sum of four uniform bytes: close to a Gaussian.
    const float sum = (x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24);
    rows[i] = __float_as_uint((sum - 510.0f) / 148.0f) >> 16;
  }
}

enum class Transform { kNone, kOrdered, kTensor, kHadamard, kMean };
const char* name_of(Transform transform) {
  switch (transform) {
    case Transform::kNone: return "rotated rows";
    case Transform::kOrdered: return "ordered transform";
    case Transform::kTensor: return "tensor-core transform";
    case Transform::kMean: return "tensor-core transform less mean";
    default: return "tensor-core Hadamard";
  }
}

std::string variant_name(Transform mode, Codebook codebook, ScaleFit fit) {
  return std::string("encode ") + name_of(mode) + " " + codebook_name(codebook) +
         (fit == ScaleFit::kPlain ? "" : " unbiased");
}

// Keys as oscar-plus has them (symmetric: with the unbiased fit) when fit says so.
void run_size(std::int64_t num_tokens, Transform mode, Codebook codebook, ScaleFit fit,
              Report& report) {
  const PlaneLayout layout{kHeadDim, {2, kHeadDim, codebook, fit}};
  const std::int64_t plane = layout.plane_bytes(), run = 2 * plane;
  const std::int64_t elements = num_tokens * kHeads * kHeadDim;
  const int layers = static_cast<int>(
      std::max<std::int64_t>(1, std::min<std::int64_t>(40, (std::int64_t{1} << 29) / elements)));
  DeviceBuffer<bf16_t> rows(static_cast<std::size_t>(2 * elements * layers));
  fill<<<2048, 256>>>(rows.data(), static_cast<std::int64_t>(rows.size()));
  const std::int64_t pages = num_tokens / 64 + 1;
  DeviceBuffer<std::uint8_t> device_pages(static_cast<std::size_t>(pages * kHeads * run * layers));
  std::vector<std::int64_t> slots(static_cast<std::size_t>(num_tokens));
  std::iota(slots.begin(), slots.end(), 0);
  DeviceBuffer<std::int64_t> device_slots(slots);
  std::vector<float> matrix(std::size_t{kHeads} * kHeadDim * kHeadDim);
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.0f, 1.0f / std::sqrt(float{kHeadDim}));
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    const std::size_t row = i / kHeadDim % kHeadDim, column = i % kHeadDim;
    matrix[i] = mode == Transform::kHadamard
                    ? (__builtin_parityll(row & column) ? -1 : 1) / std::sqrt(float{kHeadDim})
                    : normal(random);
  }
  DeviceBuffer<float> transform(matrix), clip(std::vector<float>(kHeads, 0.94f));
  const bool has_image = mode != Transform::kNone && mode != Transform::kOrdered;
  DeviceBuffer<std::uint8_t> image(has_image ? cuda::transform_image_bytes(kHeads, kHeadDim) : 0);
  if (has_image) {
    const cuda::Status status =
        cuda::run_prepare_transform(transform.data(), kHeads, kHeadDim, image.data(), nullptr);
    if (!status.ok()) throw Error(ErrorCode::kUnsupported, status.message);
  }
  // Means of keys before RoPE and of values; angles are any.
  std::vector<float> means(std::size_t{kHeads} * kHeadDim), turns(std::size_t(pages * kHeadDim));
  for (float& x : means) x = 8 * normal(random);
  for (std::size_t i = 0; i < turns.size(); i += 2) {
    turns[i] = static_cast<float>(std::cos(double(i)));
    turns[i + 1] = static_cast<float>(std::sin(double(i)));
  }
  std::vector<std::int32_t> positions(static_cast<std::size_t>(num_tokens));
  std::iota(positions.begin(), positions.end(), 0);
  turns.resize(std::max<std::size_t>(turns.size(), 64 * kHeadDim));
  DeviceBuffer<float> mean(means), turn(turns);
  DeviceBuffer<std::int32_t> position(positions);
  const auto launch = [&](int index, cudaStream_t stream) {
    cuda::EncodeParams p;
    if (mode == Transform::kMean) {
      p.sides[0].mean = p.sides[1].mean = mean.data();
      p.positions = position.data();
      p.rope_tile = p.rope_start = turn.data();
      p.num_pairs = kHeadDim / 2;
    }
    const int layer = index % layers;
    for (int side = 0; side < 2; ++side) {
      cuda::EncodeSide& s = p.sides[side];
      s.rows = rows.data() + (2 * layer + side) * elements;
      s.token_stride = kHeads * kHeadDim;
      s.head_stride = kHeadDim;
      s.transform = mode == Transform::kOrdered ? transform.data() : nullptr;
      s.transform_image = image.data();
      s.scale_fit = fit;
      s.clip_ratio = clip.data();
      s.plane = cuda::device_plane(layout, side ? cuda::Side::kValue : cuda::Side::kKey);
      s.plane_offset_bytes = static_cast<std::int32_t>(side * plane);
    }
    p.num_tokens = num_tokens;
    p.num_kv_heads = kHeads;
    p.pages = device_pages.data() + layer * pages * kHeads * run;
    p.head_stride_bytes = run;
    p.page_stride_bytes = run * kHeads;
    p.slots = device_slots.data();
    const cuda::Status status = cuda::run_encode(p, stream);
    if (!status.ok()) throw Error(ErrorCode::kUnsupported, status.message);
  };
  const Timing timing = time_launches(launch, num_tokens > 1000 ? 6 : 60, Load::kSustained);
  const double bytes = static_cast<double>(num_tokens) * kHeads * (4.0 * kHeadDim + run / 64.0);
  report.add("oscar", variant_name(mode, codebook, fit),
             {0, kHeads, kHeadDim, 1, static_cast<int>(num_tokens), 2, 2}, timing,
             bytes / timing.median_us * 1e-3, -1);
}

int run(int argc, char** argv) {
  std::string json, commit = "unknown", only;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) json = argv[i + 1];
    if (std::strcmp(argv[i], "--commit") == 0) commit = argv[i + 1];
    if (std::strcmp(argv[i], "--only") == 0) only = argv[i + 1];
  }
  Report report;
  for (const std::int64_t tokens : {100000, 32}) {
    for (const Transform mode : {Transform::kNone, Transform::kHadamard, Transform::kTensor,
                                 Transform::kMean, Transform::kOrdered}) {
      for (const auto& [codebook, fit] : {std::pair{Codebook::kAffine, ScaleFit::kPlain},
                                          std::pair{Codebook::kSymmetric, ScaleFit::kPlain},
                                          std::pair{Codebook::kSymmetric, ScaleFit::kUnbiased},
                                          std::pair{Codebook::kTrellis, ScaleFit::kPlain},
                                          std::pair{Codebook::kTrellis, ScaleFit::kUnbiased}}) {
        if (!variant_name(mode, codebook, fit).starts_with(only)) continue;
        run_size(tokens, mode, codebook, fit, report);
      }
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

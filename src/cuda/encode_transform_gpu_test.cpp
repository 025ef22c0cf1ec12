// Transform, key mean and exact copies of the encode kernels against the CPU, and that a token's
// bytes do not depend on its batch. Needs a GPU; skipped, and said so, without one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cuda/encode.h"
#include "cuda/testing/device_buffer.h"
#include "kernels/kernels.h"

namespace oscar::cuda {
namespace {

using testing::DeviceBuffer;

struct Spec {
  int head_dim = 128, num_kv_heads = 2;
  std::int64_t num_tokens = 700;
  QuantSpec key{2, 128, Codebook::kAffine}, value{2, 128, Codebook::kAffine};
  bool has_image = true, is_hadamard = false;
  bool has_mean = false, interleaved = false;
  int first_position = 70;  // 69: slabs of slots are slabs of positions
  bool has_raw_copies = false;
  unsigned seed = 1;
};

// Everything of a case on the host and the device; run() encodes tokens [begin, end).
class Case {
 public:
  explicit Case(const Spec& spec) : spec_(spec) {
    std::mt19937 random(spec.seed);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    const std::size_t heads = std::size_t(spec.num_kv_heads), dim = std::size_t(spec.head_dim);
    for (int side = 0; side < 2; ++side) {
      for (std::size_t i = 0; i < heads * dim; ++i) {
        mean_[side].push_back(spec.has_mean ? 4.0f * normal(random) : 0.0f);
      }
      for (std::size_t i = 0; i < heads * dim * dim; ++i) {
        const std::size_t row = i / dim % dim, column = i % dim;
        const int sign = __builtin_parityll(row & column) ? -1 : 1;
        const float scale = 1.0f / std::sqrt(float(dim));
        matrix_[side].push_back(scale * (spec.is_hadamard ? float(sign) : normal(random)));
      }
    }
    const int pairs = spec.head_dim / 2;
    for (int f = 0; f < pairs; ++f) frequency_.push_back(std::pow(1e4, -double(f) / pairs));
    for (int row = 0; row < kPageTokens; ++row) push_row(tile_, row);
    for (int row = 0; row < 40; ++row) push_row(start_, row * kPageTokens);
    for (std::int64_t t = 0; t < spec.num_tokens; ++t) {
      positions_.push_back(static_cast<std::int32_t>(spec.first_position + t));
    }
    for (int side = 0; side < 2; ++side) {
      for (std::int64_t t = 0; t < spec.num_tokens; ++t) {
        for (int head = 0; head < spec.num_kv_heads; ++head) {
          for (int d = 0; d < spec.head_dim; ++d) {
            rows_[side].push_back(
                bf16_from_float(float(mean_at(side, head, d, t)) + normal(random)));
          }
        }
      }
    }
    run_bytes_ = layout(0).plane_bytes() + layout(1).plane_bytes();
    for (int side = 0; side < 2; ++side) {
      device_rows_[side] = DeviceBuffer<bf16_t>(rows_[side]);
      device_mean_[side] = DeviceBuffer<float>(mean_[side]);
      device_matrix_[side] = DeviceBuffer<float>(matrix_[side]);
      clip_[side] = DeviceBuffer<float>(std::vector<float>(heads, clip(side)));
      image_[side] = DeviceBuffer<std::uint8_t>(
          spec.has_image ? transform_image_bytes(spec.num_kv_heads, spec.head_dim) : 0);
      if (!spec.has_image) continue;
      const Status status = run_prepare_transform(device_matrix_[side].data(), spec.num_kv_heads,
                                                  spec.head_dim, image_[side].data(), nullptr);
      EXPECT_TRUE(status.ok()) << status.message;
    }
    device_positions_ = DeviceBuffer<std::int32_t>(positions_);
    device_tile_ = DeviceBuffer<float>(tile_);
    device_start_ = DeviceBuffer<float>(start_);
    // Slots begin in the middle of a slab; copies for every third token.
    for (std::int64_t t = 0; t < spec.num_tokens; ++t) {
      slots_.push_back(t + 5);
      copy_slots_.push_back(t % 3 == 0 ? t / 3 : -1);
    }
    device_slots_ = DeviceBuffer<std::int64_t>(slots_);
    device_copy_slots_ = DeviceBuffer<std::int64_t>(copy_slots_);
    num_pages_ = spec.num_tokens / kPageTokens + 2;
    pages_ = DeviceBuffer<std::uint8_t>(std::size_t(num_pages_ * spec.num_kv_heads * run_bytes_));
    rows_per_block_ = static_cast<int>(spec.num_tokens);
    copies_ = DeviceBuffer<bf16_t>(heads * 2 * std::size_t(rows_per_block_) * dim);
    pages_.fill(0xee);
    copies_.fill(0xee);
  }

  PlaneLayout layout(int side) const {
    return {spec_.head_dim, side == 0 ? spec_.key : spec_.value};
  }
  static float clip(int side) { return side == 0 ? 0.96f : 0.92f; }

  void run(std::int64_t begin, std::int64_t end) {
    EncodeParams p;
    for (int side = 0; side < 2; ++side) {
      EncodeSide& s = p.sides[side];
      s.token_stride = std::int64_t{spec_.num_kv_heads} * spec_.head_dim;
      s.head_stride = spec_.head_dim;
      s.rows = device_rows_[side].data() + begin * s.token_stride;
      (spec_.has_image ? s.transform_image : nothing_) = image_[side].data();
      s.transform = spec_.has_image ? nullptr : device_matrix_[side].data();
      s.mean = spec_.has_mean ? device_mean_[side].data() : nullptr;
      s.clip_ratio = clip_[side].data();
      s.plane = device_plane(layout(side), side == 0 ? Side::kKey : Side::kValue);
      s.plane_offset_bytes = static_cast<std::int32_t>(side == 0 ? 0 : layout(0).plane_bytes());
      s.scale_fit = layout(side).quant.scale_fit;
      EXPECT_STREQ(encode_kernel_name(s), spec_.has_image ? "fragments" : "ordered");
    }
    p.num_tokens = end - begin;
    p.num_kv_heads = spec_.num_kv_heads;
    p.pages = pages_.data();
    p.head_stride_bytes = run_bytes_;
    p.page_stride_bytes = run_bytes_ * spec_.num_kv_heads;
    p.slots = device_slots_.data() + begin;
    p.positions = device_positions_.data() + begin;
    p.rope_tile = device_tile_.data();
    p.rope_start = device_start_.data();
    p.num_pairs = spec_.has_mean ? spec_.head_dim / 2 : 0;
    p.interleaved = spec_.interleaved;
    p.copies = copies_.data();
    p.copy_slots = device_copy_slots_.data() + begin;
    p.rows_per_block = rows_per_block_;
    p.raw_key_copies = spec_.has_raw_copies;
    const Status status = run_encode(p, nullptr);
    ASSERT_TRUE(status.ok()) << status.message;
    testing::check(cudaDeviceSynchronize(), "encode");
  }

  std::vector<std::uint8_t> pages() const { return pages_.download(); }
  std::vector<bf16_t> copies() const { return copies_.download(); }
  void clear() {
    pages_.fill(0xee);
    copies_.fill(0xee);
  }

  // Codes that differ from the CPU's, of all; and the largest difference.
  struct Difference {
    std::int64_t codes = 0, differ = 0;
    int largest = 0;
    double copies = 0;  // largest difference of a copy, in its tolerance
    double edges = 0;   // of codes that differ: how far from a limit between codes, as copies
    double scales = 0;  // of rows whose codes are the CPU's: relative difference of their scale
    double errors = 0, cpu_errors = 0;  // squared, of decoded rows
  };
  Difference against_cpu() const {
    Difference difference;
    const std::vector<std::uint8_t> bytes = pages();
    const std::vector<bf16_t> copied = copies();
    for (int side = 0; side < 2; ++side) {
      for (int head = 0; head < spec_.num_kv_heads; ++head) {
        compare(side, head, bytes, copied, difference);
      }
    }
    return difference;
  }

 private:
  void push_row(std::vector<float>& table, int position) const {
    for (const double w : frequency_) {
      table.push_back(static_cast<float>(std::cos(w * position)));
      table.push_back(static_cast<float>(std::sin(w * position)));
    }
  }
  double mean_at(int side, int head, int d, std::int64_t token) const {
    const float* mean = mean_[side].data() + head * spec_.head_dim;
    if (side != 0 || !spec_.has_mean) return mean[d];
    const int pairs = spec_.head_dim / 2;
    const bool second = spec_.interleaved ? d % 2 : d >= pairs;
    const int f = spec_.interleaved ? d / 2 : d % pairs;
    const float first_mean = mean[spec_.interleaved ? 2 * f : f];
    const float second_mean = mean[spec_.interleaved ? 2 * f + 1 : f + pairs];
    const double angle = frequency_[std::size_t(f)] * double(spec_.first_position + token);
    return second ? first_mean * std::sin(angle) + second_mean * std::cos(angle)
                  : first_mean * std::cos(angle) - second_mean * std::sin(angle);
  }

  void compare(int side, int head, const std::vector<std::uint8_t>& bytes,
               const std::vector<bf16_t>& copied, Difference& difference) const {
    const kernels::KernelSet& cpu = kernels::selected_kernel_set();
    const PlaneLayout plane_layout = layout(side);
    const DevicePlane plane = device_plane(plane_layout, side == 0 ? Side::kKey : Side::kValue);
    const std::size_t dim = std::size_t(spec_.head_dim), tokens = std::size_t(spec_.num_tokens);
    std::vector<float> raw(tokens * dim), less(raw.size()), rotated(raw.size()), full(raw.size());
    for (std::size_t t = 0; t < tokens; ++t) {
      for (std::size_t d = 0; d < dim; ++d) {
        const float x = bf16_to_float(
            rows_[side][(t * std::size_t(spec_.num_kv_heads) + std::size_t(head)) * dim + d]);
        raw[t * dim + d] = x;
        less[t * dim + d] =
            spec_.has_mean ? x - float(mean_at(side, head, int(d), std::int64_t(t))) : x;
      }
    }
    const float* matrix = matrix_[side].data() + std::size_t(head) * dim * dim;
    const int n = spec_.head_dim;
    cpu.transform_rows({raw.data(), matrix, full.data(), spec_.num_tokens, n, n, n});
    cpu.transform_rows({less.data(), matrix, rotated.data(), spec_.num_tokens, n, n, n});
    std::vector<std::uint8_t> truth(std::size_t(num_pages_ * plane_layout.plane_bytes()), 0);
    std::vector<std::uint8_t*> planes;
    std::vector<std::int32_t> places;
    for (const std::int64_t slot : slots_) {
      planes.push_back(truth.data() + slot / kPageTokens * plane_layout.plane_bytes());
      places.push_back(static_cast<std::int32_t>(slot % kPageTokens));
    }
    cpu.encode_rows({rotated.data(), planes.data(), places.data(), spec_.num_tokens, n,
                     plane_layout, clip(side)});
    std::vector<std::uint8_t> expected(std::size_t(plane_layout.plane_bytes()));
    std::int64_t page_now = -1;
    for (std::size_t t = 0; t < tokens; ++t) {
      const std::int64_t page = slots_[t] / kPageTokens;
      const int token = static_cast<int>(slots_[t] % kPageTokens);
      if (page != page_now) {
        to_device_order(plane_layout, side == 0 ? Side::kKey : Side::kValue,
                        truth.data() + page * plane_layout.plane_bytes(), expected.data());
        page_now = page;
      }
      const std::uint8_t* actual = bytes.data() + (page * spec_.num_kv_heads + head) * run_bytes_ +
                                   (side == 0 ? 0 : layout(0).plane_bytes());
      const bool has_same_scale =
          std::memcmp(actual + plane.scale_offset(0, token),
                      expected.data() + plane.scale_offset(0, token), plane.affine ? 4 : 2) == 0;
      double squares = 0;
      for (std::size_t d = 0; d < dim; ++d) squares += double(raw[t * dim + d]) * raw[t * dim + d];
      const double deviation = std::sqrt(squares / double(dim));
      bool has_same_codes = true;
      for (int d = 0; d < n; ++d) {
        const int code = code_at(plane, expected.data(), token, d);
        const int gap = std::abs(code_at(plane, actual, token, d) - code);
        has_same_codes = has_same_codes && gap == 0;
        if (gap != 0 && !plane.trellis && has_same_scale && spec_.has_image && !spec_.has_mean &&
            plane_layout.quant.scale_fit == ScaleFit::kPlain) {
          const std::uint8_t* stored = expected.data() + plane.scale_offset(0, token);
          double sizes = 0;  // Σ|x·m|, what the rounding of a sum is bounded by
          for (std::size_t i = 0; i < dim; ++i) {
            sizes += std::fabs(double(less[t * dim + i]) * matrix[i * dim + std::size_t(d)]);
          }
          difference.edges =
              std::fmax(difference.edges,
                        edge_distance(stored, plane, double(rotated[t * dim + std::size_t(d)])) /
                            edge_tolerance(stored, sizes));
        }
        ++difference.codes;
        difference.differ += gap != 0;
        difference.largest = std::max(difference.largest, gap);
        if (copy_slots_[t] < 0) continue;
        const std::size_t row =
            std::size_t((head * 2 + side) * rows_per_block_) + std::size_t(copy_slots_[t]);
        const float copy = bf16_to_float(copied[row * dim + std::size_t(d)]);
        if (side == 0 && spec_.has_raw_copies) {
          EXPECT_EQ(copy, raw[t * dim + std::size_t(d)]) << "token " << t << " channel " << d;
          continue;
        }
        const float exact = full[t * dim + std::size_t(d)];
        // Half a BF16 step is 2^−9 of the value; what two BF16 parts of a matrix leave is 2^−17 of
        // its entries, 2^−15 of the row's deviation at most.
        const double unit = std::fabs(double(exact)) / 256 + 0x1p-15 * deviation;
        difference.copies = std::fmax(difference.copies, std::fabs(copy - exact) / unit);
      }
      difference.errors += squared_error(plane, actual, token, rotated.data() + t * dim);
      difference.cpu_errors +=
          squared_error(plane, expected.data(), token, rotated.data() + t * dim);
      const double scale = half_at(expected.data() + plane.scale_offset(0, token));
      if (has_same_codes && std::isfinite(scale) && scale > 0) {
        const double here = half_at(actual + plane.scale_offset(0, token));
        difference.scales = std::fmax(difference.scales, std::fabs(here / scale - 1));
      }
    }
  }
  static float half_at(const std::uint8_t* p) {
    return bf16_to_float(static_cast<bf16_t>(p[0] | p[1] << 8));
  }
  double squared_error(const DevicePlane& plane, const std::uint8_t* bytes, int token,
                       const float* row) const {
    const double scale = half_at(bytes + plane.scale_offset(0, token));
    const double zero =
        plane.affine ? half_at(bytes + plane.zero_offset(0, token)) : double{plane.centre()};
    double sum = 0;
    for (int d = 0; d < spec_.head_dim; ++d) {
      const int level =
          plane.trellis ? plane.trellis_level(bytes, token, d) : code_at(plane, bytes, token, d);
      const double error = row[d] - scale * (level - zero);
      sum += error * error;
    }
    return sum;
  }
  // From the level of y to the nearest limit between codes. stored: its scale and zero point.
  static double edge_distance(const std::uint8_t* stored, const DevicePlane& plane, double y) {
    const double zero = plane.affine ? half_at(stored + 2) : ((1 << plane.bits) - 1) / 2.0;
    const double level = y / half_at(stored) + zero;
    return std::fabs(level - (std::floor(level) + 0.5));
  }
  // What a level may be off by: the CPU rounds dim / 8 + 3 times, tensor cores four units of
  // float32 a step of sixteen; two BF16 parts leave 2^−17 of a general matrix; the level's own
  // arithmetic.
  double edge_tolerance(const std::uint8_t* stored, double sizes) const {
    const double sums = (spec_.head_dim / 8 + 3 + spec_.head_dim / 16 * 4) * 0x1p-24;
    return sizes * (sums + (spec_.is_hadamard ? 0 : 0x1p-17)) / half_at(stored) + 0x1p-20;
  }
  static int code_at(const DevicePlane& plane, const std::uint8_t* bytes, int token, int channel) {
    const CodePlace low = plane.low(token, channel);
    int code = bytes[low.byte] >> low.shift & ((1 << plane.low_bits()) - 1);
    if (plane.bits == 3) {
      const CodePlace high = plane.high(token, channel);
      code |= (bytes[high.byte] >> high.shift & 1) << 2;
    }
    return code;
  }

  Spec spec_;
  const void* nothing_ = nullptr;
  std::int64_t run_bytes_ = 0, num_pages_ = 0;
  int rows_per_block_ = 0;
  std::vector<double> frequency_;
  std::vector<float> mean_[2], matrix_[2], tile_, start_;
  std::vector<bf16_t> rows_[2];
  std::vector<std::int32_t> positions_;
  std::vector<std::int64_t> slots_, copy_slots_;
  DeviceBuffer<bf16_t> device_rows_[2], copies_;
  DeviceBuffer<float> device_mean_[2], device_matrix_[2], clip_[2], device_tile_, device_start_;
  DeviceBuffer<std::uint8_t> image_[2], pages_;
  DeviceBuffer<std::int32_t> device_positions_;
  DeviceBuffer<std::int64_t> device_slots_, device_copy_slots_;
};

class EncodeTransformGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
  }
  // The contract of the tensor-core transform: one code in a thousand, by one; copies within one
  // rounding. The ordered kernel sums as the CPU does: only the mean's cosines differ.
  void expect_close(const Spec& spec) {
    Case test(spec);
    test.run(0, spec.num_tokens);
    const Case::Difference difference = test.against_cpu();
    const double part = double(difference.differ) / double(difference.codes);
    EXPECT_LE(part, 1e-3) << "seed " << spec.seed;
    // Where two paths of a trellis word are as good, several of its codes differ, by any step; what
    // such rows decode to is as near to the row.
    const bool is_trellis = spec.key.codebook == Codebook::kTrellis;
    EXPECT_LE(difference.largest, is_trellis ? 3 : 1) << "seed " << spec.seed;
    const double more = difference.errors / difference.cpu_errors - 1;
    if (is_trellis) {
      EXPECT_LE(std::fabs(more), 1e-4) << "seed " << spec.seed;
      most_error_ = std::fmax(most_error_, std::fabs(more));
    }
    EXPECT_LE(difference.copies, 1.0) << "seed " << spec.seed;
    EXPECT_LE(difference.edges, 1.0) << "seed " << spec.seed;
    // Two steps of BF16: a sum in another order, and a scale that was rounded before it was fitted.
    EXPECT_LE(difference.scales, 0x1p-6) << "seed " << spec.seed;
    codes_ += difference.codes;
    differ_ += difference.differ;
    worst_ = std::fmax(worst_, part);
  }
  void TearDown() override {
    if (worst_ > 0) {
      std::printf("    worst part of codes that differ %.1e, of squared error %.1e\n", worst_,
                  most_error_);
    }
  }
  double worst_ = 0, most_error_ = 0;
  std::int64_t codes_ = 0, differ_ = 0;
};

TEST_F(EncodeTransformGpu, TensorCoresAgainstTheCpu) {
  unsigned seed = 10;
  for (const int head_dim : {64, 128}) {
    for (const int bits : {2, 3, 4}) {
      for (const Codebook codebook : {Codebook::kAffine, Codebook::kSymmetric}) {
        for (const bool is_hadamard : {false, true}) {
          for (const std::int64_t tokens : {200, 2000}) {
            Spec spec;
            spec.head_dim = head_dim;
            spec.key = {bits, head_dim, codebook, ScaleFit::kUnbiased};
            spec.value = {bits == 3 ? 2 : bits, head_dim, codebook, ScaleFit::kPlain};
            spec.is_hadamard = is_hadamard;
            spec.num_tokens = tokens;
            spec.seed = ++seed;
            expect_close(spec);
          }
        }
      }
    }
  }
  // A general matrix in two parts moves rotated values by about 2^−18 of their deviation, and a
  // BF16 scale or zero point to its neighbour in one row of a thousand: 5e-6 of the codes each.
  EXPECT_LE(double(differ_), 2e-5 * double(codes_)) << differ_ << " of " << codes_;
}

TEST_F(EncodeTransformGpu, TrellisCodesAgainstTheCpu) {
  unsigned seed = 50;
  for (const int head_dim : {64, 128}) {
    for (const bool is_hadamard : {false, true}) {
      for (const std::int64_t tokens : {200, 2000}) {
        for (const bool has_mean : {false, true}) {
          Spec spec;
          spec.head_dim = head_dim;
          spec.key = {2, head_dim, Codebook::kTrellis, ScaleFit::kUnbiased};
          spec.value = {2, head_dim, Codebook::kTrellis, ScaleFit::kLeastSquares};
          spec.is_hadamard = is_hadamard;
          spec.has_mean = has_mean;
          spec.num_tokens = tokens;
          spec.seed = ++seed;
          expect_close(spec);
        }
      }
    }
  }
  std::printf("    %.1e of the codes differ\n", double(differ_) / double(codes_));
}

TEST_F(EncodeTransformGpu, MeanAndCopies) {
  unsigned seed = 100;
  for (const bool has_image : {true, false}) {
    for (const bool interleaved : {true, false}) {
      for (const int bits : {2, 3, 4, 2}) {
        Spec spec;
        spec.has_image = has_image;
        spec.has_mean = true;
        spec.interleaved = interleaved;
        spec.key.bits = bits;
        spec.value.bits = bits == 3 ? 2 : bits;
        spec.seed = ++seed;
        spec.num_tokens = seed % 3 == 1 ? 100 : 1000;
        spec.first_position = seed % 2 == 0 ? 70 : 69;
        expect_close(spec);
        spec.has_raw_copies = true;
        expect_close(spec);
      }
    }
  }
}

TEST_F(EncodeTransformGpu, BytesDoNotDependOnTheChunk) {
  for (const int first_position : {0, 69, 70, -70}) {
    Spec spec;
    // The last once more with trellis codes.
    if (first_position < 0) {
      spec.key.codebook = spec.value.codebook = Codebook::kTrellis;
    }
    spec.has_mean = spec.has_raw_copies = first_position != 0;
    spec.first_position = std::abs(first_position);
    spec.num_tokens = 1500;
    Case test(spec);
    test.run(0, spec.num_tokens);
    const std::vector<std::uint8_t> pages = test.pages();
    const std::vector<bf16_t> copies = test.copies();
    test.clear();
    std::int64_t begin = 0;
    for (const std::int64_t size : {1, 7, 600, 32, 3, 513, 344}) {
      test.run(begin, begin + size);
      begin += size;
    }
    ASSERT_EQ(begin, spec.num_tokens);
    EXPECT_EQ(test.pages(), pages);
    EXPECT_EQ(test.copies(), copies);
  }
}

}  // namespace
}  // namespace oscar::cuda

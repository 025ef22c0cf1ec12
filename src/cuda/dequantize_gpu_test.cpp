// Dequantising on the GPU against the definition, for every shape of codes. Needs a GPU; skipped,
// and said so, without one.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "cuda/dequantize.h"
#include "cuda/testing/device_buffer.h"
#include "format/plane_layout.h"

namespace oscar::cuda {
namespace {

using testing::DeviceBuffer;

struct Spec {
  int head_dim, key_bits, value_bits, group_size;
  Codebook codebook;
};

class Dequantize : public ::testing::TestWithParam<Spec> {};

// The definition: scale · (code − zero point), the code's bits from where the layout says.
float value_at(const DevicePlane& plane, const std::uint8_t* bytes, int token, int channel) {
  const auto bf16_at = [bytes](int offset) {
    return bf16_to_float(static_cast<bf16_t>(bytes[offset] | bytes[offset + 1] << 8));
  };
  const CodePlace low = plane.low(token, channel);
  int code = bytes[low.byte] >> low.shift & ((1 << plane.low_bits()) - 1);
  if (plane.bits == 3) {
    const CodePlace high = plane.high(token, channel);
    code += 4 * (bytes[high.byte] >> high.shift & 1);
  }
  if (plane.trellis) {
    const auto before = [&](int steps) {
      const int word = channel / 16 * 16;
      const CodePlace at = plane.low(token, word + (channel + 16 - steps) % 16);
      return bytes[at.byte] >> at.shift & 3;
    };
    code = 4 * (before(0) >> 1) + 2 * ((before(0) ^ before(2)) & 1) + (before(1) & 1);
  }
  const int group = channel / plane.group_size;
  const float zero = plane.affine ? bf16_at(plane.zero_offset(group, token))
                                  : 0.5f * static_cast<float>((1 << plane.level_bits()) - 1);
  return bf16_at(plane.scale_offset(group, token)) * (static_cast<float>(code) - zero);
}

TEST_P(Dequantize, IsTheDefinition) {
  int num_devices = 0;
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
    GTEST_SKIP() << "no GPU";
  }
  const Spec spec = GetParam();
  const PlaneLayout layouts[] = {
      {spec.head_dim, {spec.key_bits, spec.group_size, spec.codebook}},
      {spec.head_dim, {spec.value_bits, spec.group_size, spec.codebook}}};
  const DevicePlane planes[] = {device_plane(layouts[0], Side::kKey),
                                device_plane(layouts[1], Side::kValue)};
  const int heads = 3, num_pages = 7;
  const std::int64_t run = planes[0].plane_bytes() + planes[1].plane_bytes();
  std::mt19937 random(1);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(num_pages * heads * run));
  // Exponents of all BF16 stay finite: 0xbf masks the top exponent bit but one.
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random()) & 0xbf;
  const std::vector<std::int32_t> table{4, 1, 6, 0};
  const std::int64_t first = 30, count = 180, stride = heads * spec.head_dim + 8;
  const DeviceBuffer<std::uint8_t> pages(bytes);
  const DeviceBuffer<std::int32_t> device_table(table);
  DeviceBuffer<bf16_t> rows[] = {DeviceBuffer<bf16_t>(static_cast<std::size_t>(count * stride)),
                                 DeviceBuffer<bf16_t>(static_cast<std::size_t>(count * stride))};
  DequantizeParams params;
  for (int side = 0; side < 2; ++side) {
    rows[side].fill(0xee);
    params.sides[side] = {rows[side].data(), planes[side], side * planes[0].plane_bytes()};
  }
  params.pages = pages.data();
  params.head_stride_bytes = run;
  params.page_stride_bytes = heads * run;
  params.block_table = device_table.data();
  params.first_token = first;
  params.num_tokens = count;
  params.token_stride = stride;
  params.num_kv_heads = heads;
  const Status status = run_dequantize(params, nullptr);
  ASSERT_TRUE(status.ok()) << status.message;
  testing::check(cudaDeviceSynchronize(), "dequantize");
  for (int side = 0; side < 2; ++side) {
    const std::vector<bf16_t> got = rows[side].download();
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t token = first + i;
      const std::size_t page =
          static_cast<std::size_t>(table[static_cast<std::size_t>(token / 64)]);
      for (int head = 0; head < heads; ++head) {
        const std::uint8_t* plane = bytes.data() + page * std::size_t(heads * run) +
                                    std::size_t(head * run) +
                                    std::size_t(side * planes[0].plane_bytes());
        for (int d = 0; d < spec.head_dim; ++d) {
          const float truth = value_at(planes[side], plane, static_cast<int>(token % 64), d);
          const bf16_t is = got[static_cast<std::size_t>(i * stride + head * spec.head_dim + d)];
          ASSERT_EQ(is, bf16_from_float(truth))
              << "side " << side << " token " << token << " head " << head << " channel " << d;
        }
      }
      EXPECT_EQ(got[static_cast<std::size_t>(i * stride + stride - 1)], 0xeeee) << "between rows";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Dequantize,
    ::testing::Values(
        Spec{128, 2, 2, 128, Codebook::kAffine}, Spec{128, 2, 2, 128, Codebook::kSymmetric},
        Spec{128, 3, 2, 128, Codebook::kSymmetric}, Spec{128, 4, 4, 64, Codebook::kAffine},
        Spec{64, 2, 2, 64, Codebook::kSymmetric}, Spec{64, 3, 2, 64, Codebook::kAffine},
        Spec{256, 2, 2, 128, Codebook::kAffine}, Spec{96, 2, 3, 32, Codebook::kAffine},
        Spec{64, 2, 2, 64, Codebook::kTrellis}, Spec{96, 2, 2, 32, Codebook::kTrellis},
        Spec{128, 2, 2, 128, Codebook::kTrellis}, Spec{256, 2, 2, 128, Codebook::kTrellis}));

}  // namespace
}  // namespace oscar::cuda

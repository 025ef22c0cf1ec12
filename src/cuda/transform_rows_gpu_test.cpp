// Rows times a matrix a KV head against fp64. Needs a GPU; skipped, and said so, without one.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "cuda/encode.h"
#include "cuda/testing/device_buffer.h"
#include "cuda/transform.h"

namespace oscar::cuda {
namespace {

using testing::DeviceBuffer;

// Queries of several heads a KV head, against fp64.
TEST(TransformRowsGpu, QueryRows) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
  for (const int head_dim : {64, 128}) {
    for (const int ratio : {1, 4, 5}) {
      constexpr int kKvHeads = 3;
      constexpr std::int64_t kTokens = 7;
      const std::size_t dim = std::size_t(head_dim), heads = std::size_t(kKvHeads * ratio);
      std::mt19937 random(static_cast<unsigned>(head_dim + ratio));
      std::normal_distribution<float> normal(0.0f, 1.0f);
      std::vector<bf16_t> rows(kTokens * heads * dim);
      for (bf16_t& x : rows) x = bf16_from_float(normal(random));
      std::vector<float> matrices(kKvHeads * dim * dim);
      for (float& x : matrices) x = normal(random) / std::sqrt(float(head_dim));
      const DeviceBuffer<bf16_t> from(rows), to(rows.size());
      const DeviceBuffer<float> device_matrices(matrices);
      const DeviceBuffer<std::uint8_t> image(transform_image_bytes(kKvHeads, head_dim));
      Status status =
          run_prepare_transform(device_matrices.data(), kKvHeads, head_dim, image.data(), nullptr);
      ASSERT_TRUE(status.ok()) << status.message;
      const std::int64_t stride = std::int64_t(heads) * head_dim;
      status = run_transform_rows({from.data(), to.data(), stride, stride, image.data(), kTokens,
                                   kKvHeads, ratio, head_dim},
                                  nullptr);
      ASSERT_TRUE(status.ok()) << status.message;
      const std::vector<bf16_t> out = to.download();
      double worst = 0;
      for (std::size_t row = 0; row < kTokens * heads; ++row) {
        const float* matrix = matrices.data() + row % heads / std::size_t(ratio) * dim * dim;
        for (std::size_t d = 0; d < dim; ++d) {
          double sum = 0;
          for (std::size_t i = 0; i < dim; ++i) {
            sum += double(bf16_to_float(rows[row * dim + i])) * matrix[i * dim + d];
          }
          const double unit = std::fabs(sum) / 256 + 0x1p-14;
          worst = std::fmax(worst, std::fabs(bf16_to_float(out[row * dim + d]) - sum) / unit);
        }
      }
      EXPECT_LE(worst, 1.0) << head_dim << " " << ratio;
    }
  }
}

}  // namespace
}  // namespace oscar::cuda

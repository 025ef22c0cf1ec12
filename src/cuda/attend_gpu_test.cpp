// Attention kernels against fp64, lengths and masks of every kind. Needs a GPU; skipped, and said
// so, without one.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "cuda/encode.h"
#include "cuda/testing/attend_fixture.h"

namespace oscar::cuda {
namespace {

using testing::CaseSpec;
using testing::DeviceBuffer;
using testing::RandomCase;

class AttendGpu : public testing::AttendFixture {};

TEST_P(AttendGpu, EveryShapeAndLength) {
  struct Bits {
    int key, value;
  };
  unsigned seed = 1;
  for (const int head_dim : {64, 128, 256}) {
    for (const Bits bits : {Bits{2, 2}, Bits{3, 2}, Bits{4, 2}, Bits{4, 4}}) {
      for (const Codebook codebook : {Codebook::kAffine, Codebook::kSymmetric}) {
        for (const int ratio : {1, 4, 5, 8, 16}) {
          CaseSpec spec;
          spec.lengths = {0, 1, 63, 64, 65, 200, 1000};
          spec.head_dim = head_dim;
          spec.key_bits = bits.key;
          spec.value_bits = bits.value;
          spec.codebook = codebook;
          spec.num_kv_heads = 2;
          spec.num_q_heads = 2 * ratio;
          spec.seed = ++seed;
          expect_right(spec);
        }
      }
    }
  }
}

TEST_P(AttendGpu, OneGroupOfTheWholeHead) {
  if (GetParam() == AttendKernel::kHopperPrefill) GTEST_SKIP() << "no heads of 256";
  CaseSpec spec;
  spec.head_dim = spec.group_size = 256;
  spec.lengths = {700, 65};
  expect_right(spec);
  spec.codebook = Codebook::kSymmetric;
  spec.key_bits = 3;
  expect_right(spec);
}

TEST_P(AttendGpu, WindowEdges) {
  unsigned seed = 100;
  for (const int head_dim : {64, 128, 256}) {
    for (const int ratio : {1, 4, 8}) {
      CaseSpec spec;
      spec.head_dim = head_dim;
      spec.num_q_heads = 2 * ratio;
      spec.has_copies = true;
      spec.sink_tokens = 64;
      spec.recent_tokens = 256;
      spec.lengths = {1, 64, 65, 255, 256, 257, 319, 320, 321, 383, 384, 385, 700, 0};
      spec.seed = ++seed;
      expect_right(spec);
      spec.sink_tokens = 5;
      spec.recent_tokens = 37;
      expect_right(spec);
      spec.sink_tokens = 0;
      expect_right(spec);
      spec.sink_tokens = 70;
      spec.recent_tokens = 0;
      expect_right(spec);
    }
  }
}

TEST_P(AttendGpu, SeveralQueryTokens) {
  unsigned seed = 200;
  for (const int num_queries : {1, 2, 3, 5, 8}) {
    for (const bool has_copies : {false, true}) {
      CaseSpec spec;
      spec.num_queries = num_queries;
      spec.has_copies = has_copies;
      spec.sink_tokens = has_copies ? 16 : 0;
      spec.recent_tokens = has_copies ? 64 : 0;
      spec.lengths = {num_queries, num_queries + 1, 64, 66, 80, 300, 3};
      spec.num_q_heads = 6;
      spec.seed = ++seed;
      expect_right(spec);
    }
  }
}

TEST_P(AttendGpu, MasksCapsAndSinks) {
  unsigned seed = 300;
  for (const std::int32_t window : {0, 1, 64, 100, 512}) {
    for (const float cap : {0.0f, 20.0f}) {
      for (const bool has_sinks : {false, true}) {
        CaseSpec spec;
        spec.sliding_window = window;
        spec.soft_cap = cap;
        spec.has_sinks = has_sinks;
        spec.has_copies = seed % 2 == 0;
        spec.sink_tokens = spec.has_copies ? 64 : 0;
        spec.recent_tokens = spec.has_copies ? 128 : 0;
        spec.lengths = {0, 1, 130, 600, 601, 1111};
        spec.seed = ++seed;
        expect_right(spec);
      }
    }
  }
}

TEST_P(AttendGpu, KeyMean) {
  unsigned seed = 400;
  for (const int head_dim : {64, 128}) {
    for (const int ratio : {1, 4, 8}) {
      for (const int pairs : {0, 5, 6, 16, 32}) {
        // Odd numbers of pairs are not the decode kernel's.
        if (pairs % 2 != 0 && GetParam() == AttendKernel::kHopperDecode) continue;
        CaseSpec spec;
        spec.head_dim = head_dim;
        spec.num_q_heads = 2 * ratio;
        spec.codebook = seed % 2 == 0 ? Codebook::kSymmetric : Codebook::kAffine;
        spec.key_bits = seed % 3 == 0 ? 3 : 2;
        spec.has_mean = true;
        spec.mean_pairs = pairs;
        spec.mean_spread = seed % 4 == 0 ? 40.0f : 2.0f;
        spec.has_copies = seed % 2 == 0;
        spec.sink_tokens = spec.has_copies ? 16 : 0;
        spec.recent_tokens = spec.has_copies ? 64 : 0;
        spec.num_queries = seed % 5 == 0 ? 3 : 1;
        spec.lengths = {0, 3, 63, 64, 65, 700, 4000};
        spec.seed = ++seed;
        expect_right(spec);
      }
    }
  }
}

TEST_P(AttendGpu, SharpAndScaledValues) {
  for (const float spread : {0.1f, 8.0f}) {
    for (const float value_scale : {1e-4f, 1.0f, 300.0f}) {
      CaseSpec spec;
      spec.query_spread = spread;
      spec.value_scale = value_scale;
      spec.lengths = {4001, 700};
      spec.has_copies = true;
      spec.sink_tokens = 16;
      spec.recent_tokens = 32;
      expect_right(spec);
    }
  }
}

TEST_P(AttendGpu, ManySequencesAndOneLong) {
  CaseSpec spec;
  spec.num_kv_heads = 1;
  spec.num_q_heads = 4;
  spec.lengths.assign(300, 0);
  for (std::size_t i = 0; i < spec.lengths.size(); ++i) {
    spec.lengths[i] = static_cast<std::int32_t>((i * 37) % 400);
  }
  expect_right(spec);
  spec.lengths = {131072};
  expect_right(spec);
}

// Exact keys as they came, which meet queries of their own.
TEST_P(AttendGpu, CopiesOfKeysAsTheyCame) {
  unsigned seed = 470;
  for (const int head_dim : {64, 128, 256}) {
    for (const int ratio : {1, 4, 8, 16}) {
      for (const int num_queries : {1, 5}) {
        CaseSpec spec;
        spec.head_dim = head_dim;
        spec.num_q_heads = 2 * ratio;
        spec.num_queries = num_queries;
        spec.codebook = seed % 3 == 0 ? Codebook::kTrellis : Codebook::kAffine;
        spec.has_mean = seed % 2 == 0 && head_dim != 256;
        spec.mean_pairs = 8;
        spec.has_copies = spec.has_raw_queries = true;
        spec.sink_tokens = 16;
        spec.recent_tokens = 40;
        spec.lengths = {30, 57, 64, 400, 2000};
        spec.seed = ++seed;
        expect_right(spec);
      }
    }
  }
}

// Of the kernel that sums whole codes before their zero point; others have tests of their own.
class HopperDecodeGpu : public AttendGpu {};

// As many sequences as multiprocessors: a block has one of them whole, and sums of a warp are long.
TEST_P(HopperDecodeGpu, LongHistoriesInABlock) {
  unsigned seed = 500;
  const auto expect_right_at = [&](CaseSpec spec, std::int32_t length) {
    spec.num_kv_heads = 1;
    spec.shares_pages = true;
    spec.lengths.assign(std::size_t(device_.num_sms), length);
    spec.seed = ++seed;
    ASSERT_LE(plan_attend(spec.shape(), device_, GetParam()).num_splits, 1);
    expect_right(spec);
  };
  struct Bits {
    int key, value;
  };
  for (const int head_dim : {64, 128, 256}) {
    for (const Bits bits : {Bits{2, 2}, Bits{3, 2}, Bits{4, 4}}) {
      for (const int ratio : {4, 8}) {
        CaseSpec spec;
        spec.head_dim = head_dim;
        spec.key_bits = bits.key;
        spec.value_bits = bits.value;
        spec.codebook = seed / 3 % 2 == 0 ? Codebook::kAffine : Codebook::kSymmetric;
        spec.num_q_heads = ratio;
        spec.has_mean = seed % 3 == 0 && bits.value == 2 && head_dim != 256;
        spec.mean_pairs = 8;
        expect_right_at(spec, 30000);
      }
    }
  }
  CaseSpec spec;
  spec.num_q_heads = 4;
  expect_right_at(spec, 1 << 20);
  spec.num_q_heads = 8;
  spec.codebook = Codebook::kSymmetric;
  expect_right_at(spec, 1 << 19);
}

TEST_P(AttendGpu, AGraphServesOtherLengthsAndTables) {
  CaseSpec spec;
  spec.lengths = {500, 900, 128, 1000};
  spec.has_copies = true;
  spec.sink_tokens = 32;
  spec.recent_tokens = 64;
  expect_right_replays(spec);
  spec.codebook = Codebook::kTrellis;
  expect_right_replays(spec);
}

// One token takes half of the weight and all others share the rest evenly, each below 1e-5 of the
// total.
TEST_P(AttendGpu, SmallWeightsAreNotLost) {
  CaseSpec spec;
  spec.num_kv_heads = 1;
  spec.num_q_heads = 4;
  spec.codebook = Codebook::kSymmetric;
  spec.lengths = {131072};
  spec.query_spread = 6.0f;  // logits of a deviation of about 6: most tokens weigh below 1e-6
  expect_right(spec);
}

// Pages beyond 2^31 bytes of the pool.
TEST_P(AttendGpu, ALargePool) {
  CaseSpec spec;
  spec.lengths = {300, 1000, 64};
  RandomCase random_case(spec);
  const Launch launch = prepare(random_case);
  random_case.poison_results();
  run(launch, random_case, nullptr);
  testing::check(cudaDeviceSynchronize(), "small pool");
  const std::vector<float> expected = random_case.out();

  AttendParams params = random_case.params();
  const std::int64_t first = ((std::int64_t{1} << 32) + (1 << 20)) / params.page_stride_bytes;
  const std::size_t used = std::size_t(params.num_pages * params.page_stride_bytes);
  DeviceBuffer<std::uint8_t> pool(std::size_t(first * params.page_stride_bytes) + used);
  testing::check(cudaMemcpy(pool.data() + first * params.page_stride_bytes, params.pages, used,
                            cudaMemcpyDeviceToDevice),
                 "pages");
  std::vector<std::int32_t> table(std::size_t(params.num_seqs * params.block_table_stride));
  testing::check(
      cudaMemcpy(table.data(), params.block_table, 4 * table.size(), cudaMemcpyDeviceToHost),
      "table");
  for (std::int32_t& id : table) id += static_cast<std::int32_t>(id < first ? first : 0);
  const DeviceBuffer<std::int32_t> device_table(table);
  params.pages = pool.data();
  params.block_table = device_table.data();
  params.num_pages += first;
  random_case.poison_results();
  const Status status =
      run_attend(launch.plan, params, launch.workspace.data(), launch.workspace.size(), nullptr);
  ASSERT_TRUE(status.ok()) << status.message;
  testing::check(cudaDeviceSynchronize(), "large pool");
  EXPECT_EQ(random_case.out(), expected);
}

// Outputs in the raw basis are those of the rotated one times the matrix: of BF16 rows, so that a
// sum of head_dim products is off by its own rounding to BF16 and by what two parts leave of the
// matrix.
TEST_P(AttendGpu, OutputsInTheRawBasis) {
  unsigned seed = 600;
  for (const int head_dim : {64, 128}) {
    for (const int ratio : {1, 4, 8, 16}) {
      for (const int key_bits : {2, 3, 0}) {  // 0: trellis codes
        for (const int batch : {1, 40}) {
          CaseSpec spec;
          spec.head_dim = head_dim;
          spec.key_bits = key_bits == 3 ? 3 : 2;
          if (key_bits == 0) spec.codebook = Codebook::kTrellis;
          spec.num_q_heads = 2 * ratio;
          spec.num_queries = seed % 3 == 0 ? 2 : 1;
          spec.lengths.assign(std::size_t(batch), 700);
          spec.lengths[0] = 1;
          spec.seed = ++seed;
          RandomCase random_case(spec);
          const Launch launch = prepare(random_case);
          run(launch, random_case, nullptr);
          testing::check(cudaDeviceSynchronize(), "rotated");
          const std::vector<float> rotated = random_case.out();
          std::mt19937 random(seed);
          std::normal_distribution<float> normal(0.0f, 1.0f / std::sqrt(float(head_dim)));
          const std::size_t dim = std::size_t(head_dim);
          std::vector<float> matrices(2 * dim * dim);
          for (float& x : matrices) x = normal(random);
          const DeviceBuffer<float> device_matrices(matrices);
          const DeviceBuffer<std::uint8_t> image(transform_image_bytes(2, head_dim));
          Status status =
              run_prepare_transform(device_matrices.data(), 2, head_dim, image.data(), nullptr);
          ASSERT_TRUE(status.ok()) << status.message;
          AttendParams params = random_case.params();
          params.out_image = image.data();
          random_case.poison_results();
          status = run_attend(launch.plan, params, launch.workspace.data(), launch.workspace.size(),
                              nullptr);
          ASSERT_TRUE(status.ok()) << status.message;
          testing::check(cudaDeviceSynchronize(), "raw");
          const std::vector<float> raw = random_case.out();
          double worst = 0;
          for (std::size_t i = 0; i < raw.size(); ++i) {
            const std::size_t row = i / dim,
                              kv_head = row % std::size_t(2 * ratio) / std::size_t(ratio);
            double sum = 0, sizes = 0;
            for (std::size_t k = 0; k < dim; ++k) {
              const double product =
                  double(rotated[row * dim + k]) * matrices[(kv_head * dim + k) * dim + i % dim];
              sum += product;
              sizes += std::fabs(product);
            }
            const double unit = std::fabs(sum) / 256 + sizes * 0x1p-16 + 1e-30;
            worst = std::fmax(worst, std::fabs(raw[i] - sum) / unit);
          }
          EXPECT_LE(worst, 1.0) << spec.name();
        }
      }
    }
  }
}

#ifdef OSCAR_CUDA_CHECKED
TEST_P(AttendGpu, ChecksPageIds) {
  CaseSpec spec;
  spec.lengths = {300};
  RandomCase random_case(spec);
  const Launch launch = prepare(random_case);
  AttendParams params = random_case.params();
  const std::vector<std::int32_t> table(std::size_t(params.block_table_stride),
                                        static_cast<std::int32_t>(params.num_pages));
  const DeviceBuffer<std::int32_t> device_table(table);
  params.block_table = device_table.data();
  const Status status =
      run_attend(launch.plan, params, launch.workspace.data(), launch.workspace.size(), nullptr);
  ASSERT_TRUE(status.ok()) << status.message;
  testing::check(cudaDeviceSynchronize(), "bad page ids");
  const Status faults = read_faults(launch.plan, launch.workspace.data(), nullptr);
  EXPECT_NE(std::string(faults.message).find("page id"), std::string::npos);
  const Launch fresh = prepare(random_case);
  run(fresh, random_case, nullptr);
  EXPECT_TRUE(read_faults(fresh.plan, fresh.workspace.data(), nullptr).ok());
}
#endif

TEST_P(AttendGpu, RefusesBadParams) {
  CaseSpec spec;
  RandomCase random_case(spec);
  const Launch launch = prepare(random_case);
  const auto refusal = [&](AttendParams params, std::size_t bytes) {
    return std::string(
        run_attend(launch.plan, params, launch.workspace.data(), bytes, nullptr).message);
  };
  const std::size_t bytes = launch.workspace.size();
  AttendParams params = random_case.params();
  EXPECT_NE(refusal(params, bytes - 1), "");
  params.pages += 8;
  EXPECT_NE(refusal(params, bytes).find("16"), std::string::npos);
  params = random_case.params();
  params.out_image = params.pages + 8;
  EXPECT_NE(refusal(params, bytes).find("out_image"), std::string::npos);
  params = random_case.params();
  params.num_q_heads = 6;
  EXPECT_NE(refusal(params, bytes).find("num_q_heads 6"), std::string::npos);
  params = random_case.params();
  params.raw_q = params.q;  // and no stride
  EXPECT_NE(refusal(params, bytes).find("raw_q"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Kernels, AttendGpu, testing::every_attend_kernel(),
                         testing::attend_kernel_label);
INSTANTIATE_TEST_SUITE_P(Kernels, HopperDecodeGpu, ::testing::Values(AttendKernel::kHopperDecode),
                         testing::attend_kernel_label);

}  // namespace
}  // namespace oscar::cuda

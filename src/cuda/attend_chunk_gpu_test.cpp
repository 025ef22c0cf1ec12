// Attention of chunks of queries over history against fp64. Needs a GPU; skipped, and said so,
// without one.
#include <gtest/gtest.h>

#include <utility>

#include "cuda/testing/attend_fixture.h"

namespace oscar::cuda {
namespace {

using testing::CaseSpec;

class AttendChunkGpu : public testing::AttendFixture {};

// Prefill over history: a chunk of queries whose own tokens are exact, over packed pages. Not the
// decode kernel's.
TEST_P(AttendChunkGpu, ChunkOverHistory) {
  if (GetParam() == AttendKernel::kHopperDecode) GTEST_SKIP() << "at most 8 queries";
  unsigned seed = 250;
  for (const int num_queries : {9, 64, 130}) {
    for (const int head_dim : {64, 128, 256}) {
      CaseSpec spec;
      spec.head_dim = head_dim;
      spec.num_queries = num_queries;
      spec.num_q_heads = 2 * (head_dim == 128 ? 4 : 3);
      spec.has_copies = true;
      spec.sink_tokens = 16;
      spec.recent_tokens = seed % 2 == 0 ? num_queries : num_queries + 32;
      spec.key_bits = seed % 3 == 0 ? 3 : 2;
      spec.has_mean = seed % 2 == 0;
      spec.mean_pairs = seed % 3 == 0 ? 11 : 8;
      spec.has_raw_queries = seed % 4 < 2;
      spec.lengths = {num_queries, num_queries + 1, num_queries + 15, 64 * 3 + num_queries, 1000};
      spec.seed = ++seed;
      expect_right(spec);
    }
  }
}

// Chunks of several blocks of rows and one whose block is cut into splits; masks, caps and sinks.
TEST_P(AttendChunkGpu, LongChunks) {
  if (GetParam() == AttendKernel::kHopperDecode) GTEST_SKIP() << "at most 8 queries";
  unsigned seed = 270;
  for (const int head_dim : {64, 128}) {
    for (const auto& [key_bits, value_bits] : {std::pair{2, 2}, {3, 2}, {4, 2}, {4, 4}}) {
      for (const int num_queries : {17, 300}) {
        CaseSpec spec;
        spec.head_dim = head_dim;
        spec.key_bits = key_bits;
        spec.value_bits = value_bits;
        spec.codebook = seed % 2 == 0 ? Codebook::kAffine : Codebook::kSymmetric;
        spec.num_queries = num_queries;
        spec.num_q_heads = seed % 3 == 0 ? 2 : seed % 3 == 1 ? 10 : 16;
        spec.has_copies = seed % 4 != 0;
        spec.sink_tokens = spec.has_copies ? 70 : 0;
        spec.recent_tokens = spec.has_copies ? 100 : 0;
        spec.sliding_window = seed % 5 == 0 ? 150 : 0;
        spec.soft_cap = seed % 3 == 0 ? 20.0f : 0.0f;
        spec.has_sinks = seed % 2 == 0;
        spec.value_scale = seed % 4 == 1 ? 300.0f : seed % 4 == 2 ? 1e-4f : 1.0f;
        spec.lengths = {3000, num_queries, 777};
        spec.seed = ++seed;
        expect_right(spec);
      }
    }
  }
}

// So many rows that no block's tokens are split: sums over 131,072 of them stay exact enough.
TEST_P(AttendChunkGpu, ALongHistoryInOneBlock) {
  if (GetParam() != AttendKernel::kHopperPrefill) GTEST_SKIP() << "the prefill kernel's sums";
  for (const Codebook codebook : {Codebook::kAffine, Codebook::kSymmetric}) {
    CaseSpec spec;
    spec.num_kv_heads = 1;
    spec.num_q_heads = 16;
    spec.num_queries = 1100;
    spec.codebook = codebook;
    spec.lengths = {131072};
    spec.seed = 300;
    ASSERT_EQ(plan_attend(spec.shape(), device_, GetParam()).num_splits, 1);
    expect_right(spec);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, AttendChunkGpu, testing::every_attend_kernel(),
                         testing::attend_kernel_label);

}  // namespace
}  // namespace oscar::cuda

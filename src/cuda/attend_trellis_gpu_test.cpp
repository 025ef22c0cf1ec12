// Attention on trellis codes against fp64, by every kernel. Needs a GPU; skipped, and said so,
// without one.
#include <gtest/gtest.h>

#include "cuda/testing/attend_fixture.h"

namespace oscar::cuda {
namespace {

using testing::CaseSpec;

class AttendTrellisGpu : public testing::AttendFixture {
 protected:
  static CaseSpec trellis_case(int head_dim, int ratio, unsigned seed) {
    CaseSpec spec;
    spec.codebook = Codebook::kTrellis;
    spec.head_dim = head_dim;
    spec.num_q_heads = 2 * ratio;
    spec.seed = seed;
    return spec;
  }
};

// Tests of some kernels alone.
class GeneralTrellisGpu : public AttendTrellisGpu {};
class HopperDecodeTrellisGpu : public AttendTrellisGpu {};
class DecodeTrellisGpu : public AttendTrellisGpu {};  // heads of 256
class ChunkTrellisGpu : public AttendTrellisGpu {};   // more than eight queries

TEST_P(AttendTrellisGpu, EveryShapeAndLength) {
  unsigned seed = 1000;
  for (const int head_dim : {64, 128, 256}) {
    for (const int ratio : {1, 4, 5, 8, 16}) {
      CaseSpec spec = trellis_case(head_dim, ratio, ++seed);
      spec.lengths = {0, 1, 63, 64, 65, 200, 1000};
      expect_right(spec);
    }
  }
}

// Head sizes in the logical order, groups within a head, and codebooks that differ.
TEST_P(GeneralTrellisGpu, WhatTheGeneralKernelServes) {
  unsigned seed = 1100;
  for (const int head_dim : {32, 80, 96, 128}) {
    CaseSpec spec = trellis_case(head_dim, 4, ++seed);
    spec.lengths = {0, 65, 300};
    expect_right(spec);
    spec.group_size = 16;
    expect_right(spec);
  }
  for (const int head_dim : {64, 128, 256}) {
    CaseSpec spec = trellis_case(head_dim, 4, ++seed);
    spec.lengths = {1, 65, 300};
    spec.value_codebook = Codebook::kSymmetric;
    expect_right(spec);
    spec.codebook = Codebook::kSymmetric;
    spec.value_codebook = Codebook::kTrellis;
    expect_right(spec);
  }
}

TEST_P(DecodeTrellisGpu, OneGroupOfTheWholeHead) {
  CaseSpec spec = trellis_case(256, 4, 1150);
  spec.group_size = 256;
  spec.lengths = {700, 65};
  expect_right(spec);
}

TEST_P(AttendTrellisGpu, WindowEdges) {
  unsigned seed = 1200;
  for (const int head_dim : {64, 128, 256}) {
    for (const int ratio : {1, 4, 8}) {
      CaseSpec spec = trellis_case(head_dim, ratio, ++seed);
      spec.has_copies = true;
      spec.sink_tokens = 64;
      spec.recent_tokens = 256;
      spec.lengths = {1, 64, 65, 255, 256, 257, 319, 320, 321, 383, 384, 385, 700, 0};
      expect_right(spec);
      spec.sink_tokens = 5;
      spec.recent_tokens = 37;
      expect_right(spec);
      spec.sink_tokens = 70;
      spec.recent_tokens = 0;
      expect_right(spec);
    }
  }
}

TEST_P(AttendTrellisGpu, SeveralQueryTokens) {
  unsigned seed = 1300;
  for (const int num_queries : {1, 2, 3, 5, 8}) {
    for (const bool has_copies : {false, true}) {
      CaseSpec spec = trellis_case(num_queries % 2 ? 128 : 64, 3, ++seed);
      spec.num_queries = num_queries;
      spec.has_copies = has_copies;
      spec.sink_tokens = has_copies ? 16 : 0;
      spec.recent_tokens = has_copies ? 64 : 0;
      spec.lengths = {num_queries, num_queries + 1, 64, 66, 80, 300, 3};
      expect_right(spec);
    }
  }
}

TEST_P(AttendTrellisGpu, MasksCapsAndSinks) {
  unsigned seed = 1400;
  for (const std::int32_t window : {0, 1, 100}) {
    for (const float cap : {0.0f, 20.0f}) {
      for (const bool has_copies : {false, true}) {
        CaseSpec spec = trellis_case(128, 4, ++seed);
        spec.sliding_window = window;
        spec.soft_cap = cap;
        spec.has_sinks = seed % 3 == 0;
        spec.has_copies = has_copies;
        spec.sink_tokens = has_copies ? 64 : 0;
        spec.recent_tokens = has_copies ? 128 : 0;
        spec.lengths = {0, 1, 130, 600, 601, 1111};
        expect_right(spec);
      }
    }
  }
}

TEST_P(AttendTrellisGpu, KeyMean) {
  unsigned seed = 1500;
  for (const int head_dim : {64, 128}) {
    for (const int ratio : {1, 4, 8}) {
      for (const int pairs : {6, 16, 32}) {
        CaseSpec spec = trellis_case(head_dim, ratio, ++seed);
        spec.has_mean = true;
        spec.mean_pairs = pairs;
        spec.mean_spread = seed % 4 == 0 ? 40.0f : 2.0f;
        spec.has_copies = seed % 2 == 0;
        spec.sink_tokens = spec.has_copies ? 16 : 0;
        spec.recent_tokens = spec.has_copies ? 64 : 0;
        spec.lengths = {0, 3, 63, 64, 65, 700, 4000};
        expect_right(spec);
      }
    }
  }
}

TEST_P(AttendTrellisGpu, SharpAndScaledValues) {
  for (const int head_dim : {64, 128}) {
    for (const float spread : {0.1f, 8.0f}) {
      for (const float value_scale : {1e-4f, 1.0f, 300.0f}) {
        CaseSpec spec = trellis_case(head_dim, 4, 1);
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
}

TEST_P(ChunkTrellisGpu, ChunkOverHistory) {
  unsigned seed = 1600;
  for (const int num_queries : {9, 64, 300}) {
    for (const int head_dim : {64, 128, 256}) {
      CaseSpec spec = trellis_case(head_dim, head_dim == 128 ? 4 : 3, ++seed);
      spec.num_queries = num_queries;
      spec.has_copies = seed % 3 != 0;
      spec.sink_tokens = spec.has_copies ? 16 : 0;
      spec.recent_tokens = spec.has_copies ? num_queries + 32 : 0;
      spec.has_mean = seed % 2 == 0;
      spec.mean_pairs = 8;
      spec.value_scale = seed % 4 == 1 ? 300.0f : 1.0f;
      spec.lengths = {num_queries, num_queries + 1, 64 * 3 + num_queries, 1000};
      expect_right(spec);
    }
  }
}

// As many sequences as multiprocessors: a block has one of them whole, and sums of a warp are long.
TEST_P(HopperDecodeTrellisGpu, LongHistoriesInABlock) {
  unsigned seed = 1700;
  for (const int head_dim : {64, 128, 256}) {
    for (const int ratio : {4, 8}) {
      CaseSpec spec = trellis_case(head_dim, ratio, ++seed);
      spec.num_kv_heads = 1;
      spec.num_q_heads = ratio;
      spec.shares_pages = true;
      spec.lengths.assign(std::size_t(device_.num_sms), 30000);
      expect_right(spec);
    }
  }
  CaseSpec spec = trellis_case(128, 4, ++seed);
  spec.num_kv_heads = 1;
  spec.num_q_heads = 4;
  spec.shares_pages = true;
  spec.lengths.assign(std::size_t(device_.num_sms), 1 << 19);
  expect_right(spec);
}

INSTANTIATE_TEST_SUITE_P(Kernels, AttendTrellisGpu, testing::every_attend_kernel(),
                         testing::attend_kernel_label);

INSTANTIATE_TEST_SUITE_P(Kernels, GeneralTrellisGpu, ::testing::Values(AttendKernel::kGeneric),
                         testing::attend_kernel_label);
INSTANTIATE_TEST_SUITE_P(Kernels, HopperDecodeTrellisGpu,
                         ::testing::Values(AttendKernel::kHopperDecode),
                         testing::attend_kernel_label);
INSTANTIATE_TEST_SUITE_P(Kernels, DecodeTrellisGpu,
                         ::testing::Values(AttendKernel::kHopperDecode, AttendKernel::kGeneric),
                         testing::attend_kernel_label);
INSTANTIATE_TEST_SUITE_P(Kernels, ChunkTrellisGpu,
                         ::testing::Values(AttendKernel::kHopperPrefill, AttendKernel::kGeneric),
                         testing::attend_kernel_label);

}  // namespace
}  // namespace oscar::cuda

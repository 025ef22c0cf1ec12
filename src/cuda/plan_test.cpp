#include "cuda/plan.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "cuda/attend_units.h"

namespace oscar::cuda {
namespace {

constexpr DeviceInfo kH200{90, 132, 232448};
constexpr DeviceInfo kA100{80, 108, 166912};

AttendShape decode_shape(int batch, std::int64_t length) {
  AttendShape shape;
  shape.num_seqs = batch;
  shape.num_q_heads = 32;
  shape.num_kv_heads = 8;
  shape.key = shape.value = {128, {2, 128}};
  shape.max_seq_len = length;
  return shape;
}

std::string refusal_of(const AttendShape& shape, const DeviceInfo& device) {
  try {
    plan_attend(shape, device);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(AttendPlan, SplitsFewItemsAndSharesMany) {
  const AttendPlan one = plan_attend(decode_shape(1, 30000), kH200);
  EXPECT_EQ(one.kernel, AttendKernel::kHopperDecode);
  EXPECT_EQ(one.num_splits, 16);
  EXPECT_EQ(one.grid, 128);
  const AttendPlan many = plan_attend(decode_shape(32, 30000), kH200);
  EXPECT_EQ(many.num_splits, 0);
  EXPECT_EQ(many.grid, 132);
  const AttendPlan tiny = plan_attend(decode_shape(1, 64), kH200);
  EXPECT_EQ(tiny.grid, 8);
}

TEST(AttendPlan, SaysWhyTheFastKernelDoesNotServe) {
  EXPECT_EQ(plan_attend(decode_shape(1, 100), kH200).reason, "");
  const AttendPlan ampere = plan_attend(decode_shape(1, 100), kA100);
  EXPECT_EQ(ampere.kernel, AttendKernel::kGeneric);
  EXPECT_NE(ampere.reason.find("Hopper"), std::string::npos);
  DeviceInfo without_code = kH200;
  without_code.has_hopper_code = false;
  const AttendPlan general = plan_attend(decode_shape(1, 100), without_code);
  EXPECT_EQ(general.kernel, AttendKernel::kGeneric);
  EXPECT_NE(general.reason.find("sm_90a"), std::string::npos);
  AttendShape shape = decode_shape(1, 100);
  shape.key.head_dim = shape.value.head_dim = 96;
  shape.key.quant.group_size = shape.value.quant.group_size = 96;
  EXPECT_NE(plan_attend(shape, kH200).reason.find("96"), std::string::npos);
  EXPECT_THROW(plan_attend(shape, kH200, AttendKernel::kHopperDecode), Error);
}

TEST(AttendPlan, TakesEvenNumbersOfPairsOfTheKeyMeanFast) {
  AttendShape shape = decode_shape(8, 1000);
  shape.has_mean = true;
  shape.mean_pairs = 16;
  EXPECT_EQ(plan_attend(shape, kH200).kernel, AttendKernel::kHopperDecode);
  shape.mean_pairs = 64;
  EXPECT_EQ(plan_attend(shape, kH200).kernel, AttendKernel::kHopperDecode);
  EXPECT_EQ(plan_attend(shape, kH200).reason, "");
  shape.num_queries = 512;
  EXPECT_EQ(plan_attend(shape, kH200).kernel, AttendKernel::kGeneric);
  EXPECT_NE(plan_attend(shape, kH200).reason.find("64 pairs"), std::string::npos);
  shape.num_queries = 1;
  shape.mean_pairs = 7;
  EXPECT_NE(plan_attend(shape, kH200).reason.find("7 pairs"), std::string::npos);
  shape.mean_pairs = 65;
  EXPECT_NE(refusal_of(shape, kH200).find("65"), std::string::npos);
}

TEST(AttendPlan, TrellisCodesHaveKernelsOfTheirOwn) {
  AttendShape shape = decode_shape(8, 1000);
  shape.key.quant.codebook = shape.value.quant.codebook = Codebook::kTrellis;
  for (const int head_dim : {64, 128, 256}) {
    shape.key.head_dim = shape.value.head_dim = head_dim;
    shape.key.quant.group_size = shape.value.quant.group_size = head_dim;
    EXPECT_EQ(plan_attend(shape, kH200).kernel, AttendKernel::kHopperDecode);
    shape.num_queries = 100;
    EXPECT_EQ(plan_attend(shape, kH200).kernel,
              head_dim == 256 ? AttendKernel::kGeneric : AttendKernel::kHopperPrefill);
    shape.num_queries = 1;
  }
  shape.has_mean = true;
  shape.mean_pairs = 8;
  const AttendPlan wide = plan_attend(shape, kH200);
  EXPECT_EQ(wide.kernel, AttendKernel::kGeneric);
  EXPECT_NE(wide.reason.find("trellis"), std::string::npos) << wide.reason;
  shape.key = shape.value = {128, {2, 128, Codebook::kTrellis}};
  EXPECT_EQ(plan_attend(shape, kH200).kernel, AttendKernel::kHopperDecode);
  EXPECT_EQ(plan_attend(shape, kA100).kernel, AttendKernel::kGeneric);
  shape.value.quant.codebook = Codebook::kSymmetric;
  for (const int num_queries : {1, 100}) {
    shape.num_queries = num_queries;
    const AttendPlan mixed = plan_attend(shape, kH200);
    EXPECT_EQ(mixed.kernel, AttendKernel::kGeneric);
    EXPECT_NE(mixed.reason.find("different codebooks"), std::string::npos) << mixed.reason;
  }
  shape.key.quant.bits = 3;
  EXPECT_NE(refusal_of(shape, kH200).find("trellis codes have 2 bits"), std::string::npos);
}

TEST(AttendPlan, ChunksOfQueriesShareUnpackedPages) {
  AttendShape shape = decode_shape(1, 32768);
  shape.num_queries = 512;  // 2048 rows a KV head: sixteen blocks of 128, eight heads
  const AttendPlan plan = plan_attend(shape, kH200);
  EXPECT_EQ(plan.kernel, AttendKernel::kHopperPrefill);
  EXPECT_EQ(plan.num_row_blocks, 16);
  EXPECT_EQ(plan.num_splits, 1);
  EXPECT_EQ(plan.workspace_bytes, plan.counter_bytes);
  shape.num_queries = 32;
  EXPECT_EQ(plan_attend(shape, kH200).num_splits, 16);
  shape.num_queries = 8;
  EXPECT_EQ(plan_attend(shape, kH200).kernel, AttendKernel::kHopperDecode);
  shape.num_queries = 512;
  EXPECT_EQ(plan_attend(shape, kA100).kernel, AttendKernel::kGeneric);
  shape.key.head_dim = shape.value.head_dim = 256;
  shape.key.quant.group_size = shape.value.quant.group_size = 256;
  const AttendPlan wide = plan_attend(shape, kH200);
  EXPECT_EQ(wide.kernel, AttendKernel::kGeneric);
  EXPECT_NE(wide.reason.find("256"), std::string::npos);
  EXPECT_THROW(plan_attend(shape, kH200, AttendKernel::kHopperPrefill), Error);
}

TEST(AttendPlan, RefusesWithTheValue) {
  AttendShape shape = decode_shape(1, 100);
  EXPECT_NE(refusal_of(shape, {75, 40, 65536}).find("7.5"), std::string::npos);
  shape.num_q_heads = 33;
  EXPECT_NE(refusal_of(shape, kH200).find("33"), std::string::npos);
  shape = decode_shape(1, -5);
  EXPECT_NE(refusal_of(shape, kH200).find("-5"), std::string::npos);
  shape = decode_shape(1, 100);
  shape.num_q_heads = 8 * 17;
  EXPECT_NE(refusal_of(shape, kH200).find("136"), std::string::npos);
  shape = decode_shape(1, 100);
  shape.value.head_dim = 64;
  EXPECT_NE(refusal_of(shape, kH200), "");
  shape = decode_shape(1024, 1 << 26);
  EXPECT_NE(refusal_of(shape, kH200).find("2^31"), std::string::npos);
}

// Every (query, token) pair is covered by exactly one kind, and by units of that kind.
TEST(SequenceUnits, CoverWhatEveryQueryReads) {
  for (const int num_queries : {1, 3, 8}) {
    for (const int sinks : {0, 5, 64}) {
      for (const int recent : {0, 1, 37, 64}) {
        for (const int sliding : {0, 1, 70}) {
          const WindowRules rules{num_queries, sinks, recent, sliding};
          for (int length = 0; length <= 200; ++length) {
            const SequenceUnits units = sequence_units(rules, true, length);
            std::vector<bool> coded(300), exact(300);
            for (int u = 0; u < units.num_coded; ++u) {
              for (int i = 0; i < kPageTokens; ++i) {
                coded.at((units.first_page + u) * kPageTokens + i) = true;
              }
            }
            for (int u = 0; u < units.num_sink + units.num_recent; ++u) {
              for (int i = 0; i < kExactUnit; ++i) {
                const int token = units.exact_begin(u) + i;
                if ((u < units.num_sink) == (token < sinks)) exact.at(token) = true;
              }
            }
            for (int query = 0; query < num_queries; ++query) {
              const int position = length - num_queries + query;
              for (int token = window_begin(rules, position); token <= position; ++token) {
                const bool is_exact = reads_exact(rules, position, token);
                ASSERT_NE(is_exact, coded_tokens(rules, true, position).contains(token))
                    << length << " " << position << " " << token;
                ASSERT_TRUE(is_exact ? exact.at(token) : coded.at(token))
                    << length << " " << position << " " << token;
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace oscar::cuda

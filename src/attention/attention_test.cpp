// Attention against fp64 on the values that the codes and copies stand for.
#include "attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/attention_test_support.h"
#include "base/error.h"

namespace oscar::attention::test {
namespace {

constexpr double kMaxRelativeError = 1e-3;  // ‖o − o₆₄‖/‖o₆₄‖ over the whole output

// The bound for one output value: with u = 2⁻²⁴, a logit is a sum of three chains of at most
// head_dim products (transform of q, transform of k, dot) of magnitude ‖q‖‖k‖·scale, so it is off
// by δ ≤ 3·head_dim·u·‖q‖‖k‖·scale and its weight by 2δ of itself; the sum over tokens adds
// num_tokens·u and the output transform head_dim·u. Codes use the BF16 scale and zero exactly.
void expect_float_within(Layer& layer, const Scenario& scenario, const Result& reference) {
  const Result result = layer.attend();
  EXPECT_LE(relative_error(result.out, reference.out), kMaxRelativeError);
  const double u = std::ldexp(1.0, -24);
  const double logit_error = 3 * scenario.head_dim_k * u * layer.max_logit_magnitude();
  const double bound =
      layer.max_value() * std::sqrt(scenario.head_dim_v) *
      (2 * logit_error + u * (static_cast<double>(scenario.num_tokens) + 3 * scenario.head_dim_v));
  double largest = 0;
  for (std::size_t i = 0; i < result.out.size(); ++i) {
    ASSERT_TRUE(std::isfinite(result.out[i])) << "output " << i;
    largest = std::max(largest, std::abs(double{result.out[i]} - reference.out[i]));
  }
  EXPECT_LE(largest, bound);
  for (std::size_t i = 0; i < result.lse.size(); ++i) {
    if (std::isinf(reference.lse[i])) {
      EXPECT_EQ(result.lse[i], reference.lse[i]);
    } else {
      EXPECT_NEAR(result.lse[i], reference.lse[i],
                  logit_error +
                      u * (static_cast<double>(scenario.num_tokens) + std::abs(reference.lse[i])));
    }
  }
}

// Query rows of 16 bits: a value is off by at most half of its row's largest/32639, evenly, so the
// row by ‖q‖·(largest/rms)/(32639·√12) = 4.5e-5·‖q‖ for a largest value of 5.1 rms, which a
// Gaussian row of 256 passes once in 10⁴. A logit is off by that times ‖k‖·scale in a random
// direction out of head_dim: a standard deviation of 4.5e-5·max_logit_magnitude/√head_dim, of which
// six hold for every pair of a test; and by the roundings of single precision. Weights of 16 bits
// add 2⁻¹⁷ of a page's largest a token.
void expect_integer_within(Layer& layer, const Scenario& scenario, const Result& reference) {
  const Result result = layer.attend();
  for (const float out : result.out) ASSERT_TRUE(std::isfinite(out));
  EXPECT_LE(relative_error(result.out, reference.out), kMaxRelativeError);
  const double u = std::ldexp(1.0, -24), magnitude = layer.max_logit_magnitude();
  const double logit_error = 6 * 4.5e-5 * magnitude / std::sqrt(scenario.head_dim_k) +
                             3 * scenario.head_dim_k * u * magnitude;
  for (std::size_t i = 0; i < result.lse.size(); ++i) {
    if (std::isinf(reference.lse[i])) {
      EXPECT_EQ(result.lse[i], reference.lse[i]);
    } else {
      EXPECT_NEAR(result.lse[i], reference.lse[i],
                  logit_error +
                      u * (static_cast<double>(scenario.num_tokens) + std::abs(reference.lse[i])));
    }
  }
}

// Both paths on every kernel set that this machine has. The codes are the same in every set, and so
// is the reference.
void expect_matches_reference(const Scenario& scenario) {
  const Result reference = Layer(scenario).reference();
  for (const kernels::KernelSet* set : runnable_sets()) {
    SCOPED_TRACE(scenario.name() + ", kernels " + set->name);
    Layer layer(scenario, *set);
    layer.params().float_path = true;
    expect_float_within(layer, scenario, reference);
    layer.params().float_path = false;
    expect_integer_within(layer, scenario, reference);
  }
}

TEST(Attention, EveryPairOfBits) {
  for (const auto codebook : {Codebook::kAffine, Codebook::kSymmetric}) {
    for (const int k_bits : {2, 3, 4, 16}) {
      for (const int v_bits : {2, 3, 4, 16}) {
        for (const std::int64_t num_queries : {1, 40}) {
          expect_matches_reference({.k_bits = k_bits,
                                    .v_bits = v_bits,
                                    .codebook = codebook,
                                    .num_queries = num_queries});
        }
      }
    }
  }
}

// Keys and values of trellis codes, beside exact sides too; heads and query rows of every block.
TEST(Attention, TrellisCodes) {
  for (const int dim : {64, 80, 128, 256}) {
    for (const int group : {1, 3, 4, 7, 16}) {
      for (const std::int64_t num_queries : {1, 40}) {
        expect_matches_reference({.k_bits = 2,
                                  .v_bits = 2,
                                  .codebook = Codebook::kTrellis,
                                  .group = group,
                                  .head_dim_k = dim,
                                  .head_dim_v = dim,
                                  .num_queries = num_queries,
                                  .permuted_cells = dim == 80});
      }
    }
  }
  for (const int k_bits : {2, 16}) {
    expect_matches_reference(
        {.k_bits = k_bits, .v_bits = 18 - k_bits, .codebook = Codebook::kTrellis});
  }
}

TEST(Attention, EveryWidthOfCodes) {
  for (const int bits : {2, 3, 4}) {
    for (const int dim : {64, 80, 128}) {
      for (const std::int64_t num_queries : {1, 50}) {
        expect_matches_reference({.k_bits = bits,
                                  .v_bits = bits,
                                  .group = 3,
                                  .head_dim_k = dim,
                                  .head_dim_v = dim,
                                  .num_queries = num_queries,
                                  .permuted_cells = dim == 80});
      }
    }
  }
}

TEST(Attention, EveryHeadSize) {
  for (const int dim : {32, 64, 80, 96, 112, 128, 192, 256}) {
    for (const std::int64_t num_queries : {1, 40}) {
      expect_matches_reference({.head_dim_k = dim, .head_dim_v = dim, .num_queries = num_queries});
      expect_matches_reference({.transform = Transform::kCyclicShift,
                                .head_dim_k = dim,
                                .head_dim_v = dim,
                                .num_queries = num_queries});
    }
  }
  expect_matches_reference(
      {.group_size = 64, .head_dim_k = 192, .head_dim_v = 128, .num_queries = 5});
  expect_matches_reference(
      {.group_size = 16, .head_dim_k = 64, .head_dim_v = 96, .num_queries = 1});
}

TEST(Attention, EveryTransformAndMean) {
  for (const auto transform : {Transform::kIdentity, Transform::kHadamard, Transform::kCyclicShift,
                               Transform::kRandomOrthogonal, Transform::kNonOrthogonal}) {
    for (const auto mean : {Mean::kNone, Mean::kStatic, Mean::kHalfSplit, Mean::kInterleaved,
                            Mean::kPartialRotation}) {
      for (const std::int64_t num_queries : {1, 23}) {
        expect_matches_reference(
            {.transform = transform, .mean = mean, .num_queries = num_queries});
      }
    }
  }
}

TEST(Attention, EveryGroupRatio) {
  for (const int group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 40}) {
    for (const std::int64_t num_queries : {1, 3, 70}) {
      expect_matches_reference({.num_kv_heads = 1,
                                .group = group,
                                .num_tokens = 200,
                                .num_queries = num_queries,
                                .sink_tokens = 4});
    }
  }
}

TEST(Attention, WindowsOfCopies) {
  for (const auto& [sinks, recent] :
       {std::pair{0, 0}, {64, 256}, {64, 0}, {0, 64}, {3, 7}, {1000, 0}, {0, 1000}}) {
    for (const std::int64_t num_queries : {1, 100}) {
      for (const bool permuted : {false, true}) {
        expect_matches_reference({.num_tokens = 600,
                                  .num_queries = num_queries,
                                  .sink_tokens = sinks,
                                  .recent_tokens = recent,
                                  .permuted_cells = permuted});
      }
    }
  }
}

// Whole pages of copies are attended where they lie, the others are gathered.
TEST(Attention, CopiesInOrder) {
  for (const auto& [sinks, recent] : {std::pair{64, 256}, {128, 0}, {70, 100}}) {
    for (const int group : {1, 6}) {
      for (const int dim : {64, 128}) {
        expect_matches_reference({.group = group,
                                  .head_dim_k = dim,
                                  .head_dim_v = dim,
                                  .num_tokens = 512,
                                  .num_queries = 1,
                                  .sink_tokens = sinks,
                                  .recent_tokens = recent,
                                  .copies_in_order = true});
      }
    }
  }
}

TEST(Attention, CellsInAnyOrderOfAnyPage) {
  for (const auto mean : {Mean::kNone, Mean::kHalfSplit}) {
    for (const std::int32_t first_position : {0, 1, 63, 100000}) {
      for (const bool permuted : {false, true}) {
        expect_matches_reference({.mean = mean,
                                  .num_queries = 9,
                                  .permuted_cells = permuted,
                                  .random_pages = true,
                                  .first_position = first_position});
      }
    }
  }
}

TEST(Attention, MasksCapsSlopesSinksAndSlidingWindows) {
  for (int bits = 0; bits < 64; ++bits) {
    for (const std::int64_t num_queries : {1, 30}) {
      expect_matches_reference({.num_queries = num_queries,
                                .permuted_cells = (bits & 32) != 0,
                                .causal = (bits & 16) != 0,
                                .sliding_window = (bits & 8) != 0 ? 90 : 0,
                                .soft_cap = (bits & 4) != 0 ? 5.0f : 0.0f,
                                .mask = (bits & 1) != 0,
                                .slopes = (bits & 1) != 0 && (bits & 4) != 0,
                                .sinks = (bits & 2) != 0});
    }
  }
}

TEST(Attention, LongPromptInBlocksAndSplits) {
  for (const int num_threads : {1, 2, 3, 8}) {
    expect_matches_reference(
        {.num_kv_heads = 3, .num_tokens = 2000, .num_queries = 1, .num_threads = num_threads});
    expect_matches_reference(
        {.num_kv_heads = 1, .num_tokens = 1500, .num_queries = 200, .num_threads = num_threads});
  }
}

TEST(Attention, NothingAttended) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  Layer empty({.num_tokens = 0, .num_queries = 2});
  const Result result = empty.attend();
  EXPECT_TRUE(std::all_of(result.out.begin(), result.out.end(), [](float o) { return o == 0.0f; }));
  EXPECT_TRUE(
      std::all_of(result.lse.begin(), result.lse.end(), [](float lse) { return lse == kNothing; }));

  Layer hidden({.num_tokens = 100, .num_queries = 1});
  const std::vector<std::uint16_t> mask(100, 0xfc00);
  hidden.params().mask_f16 = mask.data();
  hidden.params().mask_stride = 100;
  const Result nothing = hidden.attend();
  EXPECT_TRUE(
      std::all_of(nothing.out.begin(), nothing.out.end(), [](float o) { return o == 0.0f; }));
  EXPECT_TRUE(std::all_of(nothing.lse.begin(), nothing.lse.end(),
                          [](float lse) { return lse == kNothing; }));

  Layer no_queries({.num_queries = 0});
  EXPECT_TRUE(no_queries.attend().out.empty());
}

TEST(Attention, MemoryThatNobodyWroteLeavesNoTrace) {
  for (const std::int64_t num_tokens : {1, 63, 64, 65, 300}) {
    for (const std::int64_t num_queries :
         {std::int64_t{1}, std::min<std::int64_t>(num_tokens, 50)}) {
      for (const bool permuted : {false, true}) {
        Scenario scenario{.num_tokens = num_tokens,
                          .num_queries = num_queries,
                          .recent_tokens = 16,
                          .permuted_cells = permuted,
                          .random_pages = true};
        for (const kernels::KernelSet* set : runnable_sets()) {
          for (const bool float_path : {false, true}) {
            scenario.float_path = float_path;
            scenario.unused_bytes = 0xff;
            const Result with_nan = Layer(scenario, *set).attend();
            scenario.unused_bytes = 0;
            const Result with_zeros = Layer(scenario, *set).attend();
            EXPECT_EQ(with_nan.out, with_zeros.out) << scenario.name() << ", " << set->name;
            EXPECT_EQ(with_nan.lse, with_zeros.lse) << scenario.name() << ", " << set->name;
          }
        }
      }
    }
  }
}

TEST(Plan, RefusesWhatIsOutOfRangeByName) {
  const Shape good{1, 64, 4, 2, 64, 64};
  const auto message = [](const Shape& shape, int num_threads) -> std::string {
    try {
      plan(shape, num_threads);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message(good, 1), "accepted");
  EXPECT_EQ(message(good, 0), "attention plan: num_threads is 0; it must be at least 1");
  Shape shape = good;
  shape.head_dim_k = 72;
  EXPECT_EQ(message(shape, 1),
            "attention plan: head_dim_k is 72; it must be a multiple of 16 from 32 to 256");
  shape = good;
  shape.num_q_heads = 5;
  EXPECT_EQ(message(shape, 1),
            "attention plan: num_q_heads is 5; it must be a multiple of num_kv_heads, 2");
  shape = good;
  shape.head_dim_v = 512;
  EXPECT_EQ(message(shape, 1),
            "attention plan: head_dim_v is 512; it must be a multiple of 16 from 32 to 256");
}

TEST(Plan, UsesEveryThread) {
  for (const int num_threads : {1, 2, 3, 4, 8}) {
    for (const int num_kv_heads : {1, 2, 3, 8}) {
      const Plan p = plan({1, 4096, 2 * num_kv_heads, num_kv_heads, 128, 128}, num_threads);
      const std::int64_t tasks = num_kv_heads * p.num_query_blocks * p.num_splits;
      const std::int64_t rounds = (tasks + num_threads - 1) / num_threads;
      EXPECT_GE(static_cast<double>(tasks), 0.9 * static_cast<double>(rounds * num_threads))
          << num_kv_heads << " heads, " << num_threads << " threads";
      EXPECT_GE(p.num_splits * p.pages_per_split, 64);
    }
  }
}

}  // namespace
}  // namespace oscar::attention::test

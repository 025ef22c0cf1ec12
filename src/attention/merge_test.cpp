#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "attention/attention.h"
#include "cache/test_artefact.h"

namespace oscar::attention::test {
namespace {

constexpr int kDim = 32;
constexpr float kNothing = -std::numeric_limits<float>::infinity();

struct Part {
  std::vector<float> out;
  float lse;
};

Part merged(Part a, const Part& b) {
  merge(a.out.data(), &a.lse, b.out.data(), b.lse, kDim);
  return a;
}

Part random_part(cache::test::Generator* generator) {
  return {cache::test::gaussian(kDim, 1.0f, generator),
          cache::test::gaussian(1, 10.0f, generator)[0]};
}

// |lse| stays below 50 and |out| below 6. A weight is exp of a difference of float logarithms, so
// off by 2·50·2⁻²⁴ of itself, and an output by twice that times |out|; the few roundings beside it
// are smaller.
void expect_near(const Part& a, const Part& b) {
  ASSERT_LT(std::abs(a.lse), 50.0f);
  EXPECT_NEAR(a.lse, b.lse, 50 * std::ldexp(1.0, -22));
  for (int d = 0; d < kDim; ++d) {
    ASSERT_LT(std::abs(a.out[d]), 6.0f);
    EXPECT_NEAR(a.out[d], b.out[d], 2 * 100 * std::ldexp(1.0, -24) * 6);
  }
}

TEST(Merge, AgreesWithFp64AndIsAssociative) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    cache::test::Generator generator(seed);
    const Part a = random_part(&generator), b = random_part(&generator),
               c = random_part(&generator);
    const double sum = std::exp(double{a.lse}) + std::exp(double{b.lse});
    Part truth{std::vector<float>(kDim), static_cast<float>(std::log(sum))};
    for (int d = 0; d < kDim; ++d) {
      truth.out[d] = static_cast<float>(
          (std::exp(double{a.lse}) * a.out[d] + std::exp(double{b.lse}) * b.out[d]) / sum);
    }
    // The weights come from float logarithms of size up to |lse|: each is off by |lse|·ulp of
    // itself.
    expect_near(merged(a, b), truth);
    expect_near(merged(merged(a, b), c), merged(a, merged(b, c)));
    expect_near(merged(a, b), merged(b, a));
  }
}

TEST(Merge, NothingIsNeutral) {
  cache::test::Generator generator(1);
  const Part a = random_part(&generator);
  const Part nothing{std::vector<float>(kDim, 0.0f), kNothing};
  for (const Part& both : {merged(a, nothing), merged(nothing, a)}) {
    EXPECT_EQ(both.out, a.out);
    EXPECT_EQ(both.lse, a.lse);
  }
  const Part none = merged(nothing, nothing);
  EXPECT_EQ(none.out, nothing.out);
  EXPECT_EQ(none.lse, kNothing);
}

}  // namespace
}  // namespace oscar::attention::test

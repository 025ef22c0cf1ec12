#include "attention/soft_cap.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace oscar::attention {
namespace {

TEST(SoftCap, AgreesWithTanh) {
  for (const float cap : {0.5f, 5.0f, 30.0f, 50.0f}) {
    std::vector<float> values;
    for (int i = -20000; i <= 20000; ++i) values.push_back(cap * static_cast<float>(i) / 2000.0f);
    values.insert(values.end(),
                  {0.0f, 1e-30f, 1e30f, -1e30f, std::numeric_limits<float>::infinity(),
                   -std::numeric_limits<float>::infinity()});
    std::vector<float> capped = values;
    soft_cap(cap, static_cast<int>(std::ssize(capped)), capped.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(capped[i], double{cap} * std::tanh(double{values[i]} / cap), cap * 0x1p-21)
          << values[i] << ", cap " << cap;
    }
  }
}

}  // namespace
}  // namespace oscar::attention

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"
#include "kernels/kernels_test_support.h"

namespace oscar::kernels {
namespace {

class Dispatch : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* before = std::getenv("OSCAR_CPU")) before_ = before;
    unsetenv("OSCAR_CPU");
  }
  void TearDown() override {
    if (before_.empty()) {
      unsetenv("OSCAR_CPU");
    } else {
      setenv("OSCAR_CPU", before_.c_str(), 1);
    }
  }

 private:
  std::string before_;
};

TEST_F(Dispatch, EverySetIsComplete) {
  for (const KernelSet* set : all_kernel_sets()) {
    EXPECT_TRUE(set->transform_rows && set->encode_rows && set->decode_rows && set->dot_tile &&
                set->accumulate_tile && set->softmax_tile && set->qk_codes && set->pv_codes &&
                set->quantize_queries && set->qk_integer && set->pv_integer && set->mean_tile)
        << set->name;
  }
  EXPECT_STREQ(all_kernel_sets().back()->name, "scalar");
  EXPECT_TRUE(all_kernel_sets().back()->supported());
}

TEST_F(Dispatch, TheBestSupportedSetUnlessForced) {
  EXPECT_EQ(&selected_kernel_set(), runnable_sets().front());
  for (const KernelSet* set : runnable_sets()) {
    setenv("OSCAR_CPU", set->name, 1);
    EXPECT_EQ(&selected_kernel_set(), set);
  }
}

TEST_F(Dispatch, WhatIsMissingIsRefusedByName) {
  setenv("OSCAR_CPU", "avx9", 1);
  try {
    selected_kernel_set();
    FAIL() << "avx9 was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    const std::string what = error.what();
    EXPECT_NE(what.find("OSCAR_CPU"), std::string::npos) << what;
    EXPECT_NE(what.find("avx9"), std::string::npos) << what;
    EXPECT_NE(what.find("scalar"), std::string::npos) << what;
  }
  for (const KernelSet* set : all_kernel_sets()) {
    if (set->supported()) continue;
    EXPECT_THROW(kernel_set_by_name(set->name), Error);
  }
}

}  // namespace
}  // namespace oscar::kernels

#include "eval/sweep.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/test_files.h"
#include "format/kv_spec.h"

namespace oscar::eval {
namespace {

TEST(Sweep, ListsAreSpecificationsThatDiffer) {
  for (const SweepKind& kind : sweep_kinds()) {
    for (const std::string base :
         {"oscar-plus", "quarot:float", "some/file.safetensors", "some/file.safetensors:float"}) {
      const std::vector<std::string> specs = sweep_specs(kind.name, base);
      EXPECT_GE(specs.size(), 3u) << kind.name;
      EXPECT_EQ(std::set<std::string>(specs.begin(), specs.end()).size(), specs.size());
      for (const std::string& spec : specs) {
        EXPECT_EQ(spec.substr(0, base.size()), base);
        EXPECT_EQ(parse_kv_spec(spec).file, parse_kv_spec(base).file) << spec;
      }
    }
  }
}

TEST(Sweep, VariesWhatItSays) {
  const std::vector<std::string> windows = sweep_specs("windows", "quarot:k3v2");
  EXPECT_EQ(windows.front(), "quarot:k3v2,sink=0,recent=0");
  EXPECT_EQ(windows.back(), "quarot:k3v2,sink=256,recent=1024");
  const std::vector<std::string> ablation = sweep_specs("ablation", "oscar-plus");
  EXPECT_EQ(ablation.front(), "oscar-plus");
  for (const char* part : {"no-u", "no-p", "no-hadamard", "no-clip", "no-mean", "unbiased"}) {
    const std::string spec = std::string("oscar-plus:") + part;
    EXPECT_EQ(std::count(ablation.begin(), ablation.end(), spec), 1) << part;
  }
  const std::vector<std::string> bits = sweep_specs("bits", "quarot");
  EXPECT_NE(std::find(bits.begin(), bits.end(), "quarot:k16v2"), bits.end());
}

TEST(Sweep, WhatCannotBeVariedIsRefused) {
  expect_error(ErrorCode::kInvalidArgument, {"'colours'", "windows, bits"},
               [] { sweep_specs("colours", "quarot"); });
  expect_error(ErrorCode::kInvalidArgument, {"'f16'", "nothing to vary"},
               [] { sweep_specs("windows", "f16"); });
  expect_error(ErrorCode::kInvalidArgument, {"sink=0", "set before"},
               [] { sweep_specs("windows", "quarot:sink=4"); });
}

}  // namespace
}  // namespace oscar::eval

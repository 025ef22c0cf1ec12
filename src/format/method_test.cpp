#include <gtest/gtest.h>

#include "base/test_files.h"
#include "format/artefact.h"

namespace oscar {
namespace {

TEST(Method, NamesGoBothWays) {
  for (const char* name : {"naive", "quarot", "oscar", "oscar-plus"}) {
    EXPECT_STREQ(method_name(method_from_name(name)), name);
  }
  for (const char* name : {"", "OSCAR", "oscar+", "kivi"}) {
    expect_error(ErrorCode::kInvalidArgument,
                 {"'" + std::string(name) + "'", "naive, quarot, oscar, oscar-plus"},
                 [&] { method_from_name(name); });
  }
}

}  // namespace
}  // namespace oscar

#include <gtest/gtest.h>

#include "base/test_files.h"
#include "format/artefact.h"

namespace oscar {
namespace {

TEST(Method, NamesGoBothWays) {
  for (const Method method : all_methods()) {
    EXPECT_EQ(method_from_name(method_name(method)), method);
    EXPECT_TRUE(is_method_name(method_name(method)));
  }
  EXPECT_STREQ(method_name(Method::kOmniscale), "omniscale");
  for (const char* name : {"", "OSCAR", "oscar+", "kivi2"}) {
    expect_error(ErrorCode::kInvalidArgument,
                 {"'" + std::string(name) + "'", "naive, quarot, oscar, oscar-plus"},
                 [&] { method_from_name(name); });
  }
}

}  // namespace
}  // namespace oscar

#include "config.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/error.h"
#include "base/text.h"
#include "device.h"
#include "log.h"

namespace oscar::ggml_plugin {
namespace {

// The plugin's variables, unset before and after each test.
class Environment : public testing::Test {
 protected:
  void SetUp() override { unset(); }
  void TearDown() override {
    unset();
    configure_from_environment();
  }
  static void unset() {
    for (const char* name : {"OSCAR_KV", "OSCAR_LOG", "OSCAR_COPIES", "OSCAR_PARTIAL"})
      ::unsetenv(name);
  }
  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }

  // What a program that names its spec, as our CLI does, is told; "" when the spec is taken.
  static std::string configured() {
    try {
      configure("quarot");
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }
};

TEST_F(Environment, BadValuesAreRefusedAlsoWhereAProgramNamesTheSpec) {
  struct Case {
    const char *name, *value, *range;
  };
  for (const Case& c :
       {Case{"OSCAR_COPIES", "banana", "1 to 256"}, Case{"OSCAR_COPIES", "0", "1 to 256"},
        Case{"OSCAR_COPIES", "999", "1 to 256"}, Case{"OSCAR_PARTIAL", "7", "0 to 1"},
        Case{"OSCAR_LOG", "nonsense", "-1 to 2"}, Case{"OSCAR_LOG", "9", "-1 to 2"}}) {
    unset();
    set(c.name, c.value);
    configure_from_environment();
    const std::string expected = std::string(c.name) + " is " + in_quotes(c.value) +
                                 "; it must be a whole number from " + c.range;
    EXPECT_EQ(configured(), expected);
    EXPECT_EQ(current_config()->error(), expected) << "a stock program's cache is refused";
  }
}

// Each variable stands for itself: a bad one leaves the others in force.
TEST_F(Environment, ABadValueLeavesTheOthersInForce) {
  set("OSCAR_LOG", "9");
  set("OSCAR_COPIES", "3");
  set("OSCAR_PARTIAL", "1");
  set("OSCAR_KV", "naive:k4v4");
  configure_from_environment();
  const auto config = current_config();
  EXPECT_EQ(config->copied_sequences, 3);
  EXPECT_TRUE(config->allow_partial);
  EXPECT_EQ(config->spec.k_bits, 4);
  set("OSCAR_COPIES", "many");
  configure_from_environment();
  EXPECT_NE(configured().find("OSCAR_LOG is"), std::string::npos);
  EXPECT_NE(configured().find("; OSCAR_COPIES is"), std::string::npos);
}

// A program that names its spec does not use OSCAR_KV.
TEST_F(Environment, ABadSpecIsReplaced) {
  set("OSCAR_KV", "no-such-file");
  set("OSCAR_COPIES", "2");
  configure_from_environment();
  EXPECT_NE(current_config()->error().find("no-such-file"), std::string::npos);
  EXPECT_EQ(configured(), "");
  EXPECT_EQ(current_config()->error(), "");
  EXPECT_EQ(current_config()->copied_sequences, 2);
}

// OSCAR_LOG=-1 is for programs that print refusals themselves; no other loses them.
TEST_F(Environment, RefusalsAreSilentOnlyWhereTheProgramTakesThem) {
  const auto said = [] {
    testing::internal::CaptureStderr();
    log_refusal("refused");
    return testing::internal::GetCapturedStderr();
  };
  set("OSCAR_LOG", "-1");
  configure_from_environment();
  EXPECT_EQ(said(), "oscar: refused\n");
  ASSERT_NE(ggml_backend_reg_get_proc_address(registry(), "oscar_last_error"), nullptr);
  EXPECT_EQ(said(), "");
  set("OSCAR_LOG", "0");
  configure_from_environment();
  EXPECT_EQ(said(), "oscar: refused\n");
}

}  // namespace
}  // namespace oscar::ggml_plugin

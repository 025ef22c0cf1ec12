#include "format/strict_json.h"

#include <gtest/gtest.h>

#include "base/test_files.h"

namespace oscar {
namespace {

void refused(const std::string& text, const std::string& part) {
  expect_error(ErrorCode::kCorrupt, {"the text", part},
               [&] { parse_strict_json(text, "the text"); });
}

TEST(StrictJson, ParsesJson) {
  const auto value = parse_strict_json(R"({"a": [1, {"a": "x"}], "b": {"a": null}})", "x");
  EXPECT_EQ(value["a"][1]["a"], "x");
  EXPECT_EQ(parse_strict_json("7", "x"), 7);
}

TEST(StrictJson, RefusesWhatIsNotJson) {
  for (const char* text :
       {"", "{", "{]", "[1,]", "nul", "1 2", "{\"a\":1}x", "\"\xff\"", "[1e999]", "// x"}) {
    refused(text, "not JSON");
  }
  refused(std::string("{}\0x", 4), "zero byte");
}

TEST(StrictJson, RefusesDoubledNames) {
  refused(R"({"a": 1, "a": 1})", "'a' twice");
  refused(R"([{"b": {"a": 1, "c": {"a": 1}, "a": 2}}])", "'a' twice");
}

TEST(StrictJson, IsBoundedInDepthAndSize) {
  const std::string open(kMaxJsonDepth, '['), close(kMaxJsonDepth, ']');
  EXPECT_NO_THROW(parse_strict_json(open + close, "x"));
  refused("[" + open + close + "]", "deeper");
  refused(std::string(200000, '['), "deeper");
  refused(std::string(kMaxJsonBytes + 1, ' '), "at most");
}

}  // namespace
}  // namespace oscar

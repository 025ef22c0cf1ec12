#include "base/text.h"

#include <gtest/gtest.h>

#include <limits>

namespace oscar {
namespace {

TEST(Text, QuotesFitOneLine) {
  EXPECT_EQ(in_quotes("layers.0"), "'layers.0'");
  EXPECT_EQ(in_quotes(""), "''");
  EXPECT_EQ(in_quotes("a\nb\x1b[31m'\\\xff"), "'a\\x0ab\\x1b[31m\\x27\\x5c\\xff'");
  EXPECT_EQ(in_quotes(std::string(kMaxQuotedBytes, 'x')),
            "'" + std::string(kMaxQuotedBytes, 'x') + "'");
  EXPECT_EQ(in_quotes(std::string(kMaxQuotedBytes + 1, 'x')),
            "'" + std::string(kMaxQuotedBytes, 'x') + "...'");
}

TEST(Text, NumbersAreShort) {
  EXPECT_EQ(number_text(0.02010000001), "0.0201");
  EXPECT_EQ(number_text(1e30), "1e+30");
  EXPECT_EQ(number_text(-std::numeric_limits<double>::infinity()), "-inf");
}

}  // namespace
}  // namespace oscar

#include "base/text.h"

#include <gtest/gtest.h>

#include <limits>

namespace oscar {
namespace {

TEST(Text, QuotesFitOneLine) {
  EXPECT_EQ(in_quotes("layers.0"), "'layers.0'");
  EXPECT_EQ(in_quotes(""), "''");
  EXPECT_EQ(in_quotes("a\nb\x1b[31m'\\\xff"), "'a\\x0ab\\x1b[31m\\x27\\x5c\\xff'");
  EXPECT_EQ(in_quotes("gr\u00fc\u00df/\u4f60\U0001f638"), "'gr\u00fc\u00df/\u4f60\U0001f638'");
  EXPECT_EQ(in_quotes(std::string(kMaxQuotedBytes, 'x')),
            "'" + std::string(kMaxQuotedBytes, 'x') + "'");
  EXPECT_EQ(in_quotes(std::string(kMaxQuotedBytes + 1, 'x')),
            "'" + std::string(kMaxQuotedBytes, 'x') + "...'");
}

// Bytes that are no UTF-8, and characters that would act on the terminal.
TEST(Text, QuotesHoldPrintableUtf8Only) {
  for (const char* bad :
       {"\x80", "\xc3", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf5\x80\x80\x80",
        "\xf4\x90\x80\x80", "\xf0\x80\x80\xaf", "\xc2\x85", "\xe2\x80\xa8", "\xe2\x80\xae",
        "\xe2\x81\xa6", "\xe4\xbd", "\x7f", "\r"}) {
    const std::string text = in_quotes(bad);
    EXPECT_EQ(text.substr(0, 3), "'\\x") << text;
    for (const char c : text) EXPECT_TRUE(c >= 0x20 && c < 0x7f) << text;
  }
  // Cut before a character, not inside it.
  const std::string edge(kMaxQuotedBytes - 1, 'x');
  EXPECT_EQ(in_quotes(edge + "\u00fc"), "'" + edge + "...'");
}

TEST(Text, NumbersAreShort) {
  EXPECT_EQ(number_text(0.02010000001), "0.0201");
  EXPECT_EQ(number_text(1e30), "1e+30");
  EXPECT_EQ(number_text(-std::numeric_limits<double>::infinity()), "-inf");
}

}  // namespace
}  // namespace oscar

#include "eval/agreement.h"

#include <gtest/gtest.h>

namespace oscar::eval {
namespace {

TEST(Agreement, PrefixAndOverlap) {
  const TokenList a = {1, 2, 3, 4, 5}, b = {1, 2, 9, 4, 5};
  EXPECT_EQ(common_prefix(a, b), 2);
  EXPECT_EQ(common_prefix(a, a), 5);
  EXPECT_EQ(common_prefix({}, a), 0);
  EXPECT_DOUBLE_EQ(ngram_overlap(a, b, 1), 0.8);
  EXPECT_DOUBLE_EQ(ngram_overlap(a, b, 2), 0.5);  // {1 2} and {4 5} of four
  EXPECT_DOUBLE_EQ(ngram_overlap(a, b, 4), 0);
  EXPECT_DOUBLE_EQ(ngram_overlap(a, a, 4), 1);
  EXPECT_DOUBLE_EQ(ngram_overlap({1}, {2}, 2), 1);
  EXPECT_DOUBLE_EQ(ngram_overlap({7, 7, 7}, {7}, 1), 0.5);
}

TEST(Agreement, Repetition) {
  EXPECT_DOUBLE_EQ(repeated_share({1, 2, 3, 4, 5}, 2), 0);
  EXPECT_DOUBLE_EQ(repeated_share({1, 2, 1, 2, 1}, 2), 0.5);
  EXPECT_DOUBLE_EQ(repeated_share({1}, 4), 0);
  EXPECT_EQ(loop_length({1, 2, 3, 4, 5, 6}), 0);
  EXPECT_EQ(loop_length({9, 8, 1, 2, 1, 2, 1, 2}), 6);
  EXPECT_EQ(loop_length({9, 2, 1, 2, 1, 2, 1, 2}), 7);  // begins in the middle of the passage
  EXPECT_EQ(loop_length({5, 4, 4, 4}), 3);
  EXPECT_EQ(loop_length({5, 4, 4}), 0);
  EXPECT_EQ(loop_length({1, 2, 1, 2, 3}), 0);  // it came out of the loop
}

TEST(Agreement, ForeignCharacters) {
  EXPECT_DOUBLE_EQ(foreign_share("Plain text, 100 % — café.", "English"), 0);
  EXPECT_DOUBLE_EQ(foreign_share("ab中文", "English"), 0.5);
  EXPECT_DOUBLE_EQ(foreign_share("ab中文", "English and 漢字"), 0);
  EXPECT_DOUBLE_EQ(foreign_share("abcдж", "English"), 0.4);
  EXPECT_DOUBLE_EQ(foreign_share("a\xff", "a"), 0.5);
  EXPECT_DOUBLE_EQ(foreign_share("a\xef\xbf\xbd", "a"), 0.5);
  EXPECT_DOUBLE_EQ(foreign_share("", "a"), 0);
}

}  // namespace
}  // namespace oscar::eval

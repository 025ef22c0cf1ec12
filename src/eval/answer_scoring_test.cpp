#include "eval/answer_scoring.h"

#include <gtest/gtest.h>

namespace oscar::eval {
namespace {

using Words = std::vector<std::string>;

TEST(AnswerScoring, WordsAndNumbers) {
  EXPECT_EQ(answer_words("The Grey  Heron's."), (Words{"the", "grey", "heron", "s"}));
  EXPECT_EQ(answer_words("It has 9,400 books"), (Words{"it", "has", "9400", "books"}));
  EXPECT_EQ(answer_words("1,234,567"), (Words{"1234567"}));
  EXPECT_EQ(answer_words("safe 4-7-1-9!"), (Words{"safe", "4719"}));
  EXPECT_EQ(answer_words("in 1904, 77 years"), (Words{"in", "1904", "77", "years"}));
  EXPECT_EQ(answer_words("1904-1911"), (Words{"1904", "1911"}));
  EXPECT_EQ(answer_words("5 6"), (Words{"5", "6"}));
  EXPECT_TRUE(answer_words(" .,-").empty());
}

TEST(AnswerScoring, RightIsAPhraseOfWholeWords) {
  EXPECT_TRUE(answer_is_right("She was called Ingrith Vale.", {"ingrith vale"}));
  EXPECT_TRUE(answer_is_right("9", {"nine", "9"}));
  EXPECT_FALSE(answer_is_right("ninety", {"nine"}));
  EXPECT_FALSE(answer_is_right("95", {"9"}));
  EXPECT_FALSE(answer_is_right("the heron was grey", {"grey heron"}));
  EXPECT_FALSE(answer_is_right("", {"x"}));
  EXPECT_FALSE(answer_is_right("anything", {""}));
}

TEST(AnswerScoring, TheFirstNumberDecides) {
  EXPECT_EQ(first_number("The key is 48213, not 11111"), "48213");
  EXPECT_EQ(first_number("none"), "");
  EXPECT_DOUBLE_EQ(digit_share("It is 48213.", "48213"), 1);
  EXPECT_DOUBLE_EQ(digit_share("It is 48290.", "48213"), 0.6);
  EXPECT_DOUBLE_EQ(digit_share("482130", "48213"), 5.0 / 6.0);
  EXPECT_DOUBLE_EQ(digit_share("11111 or 48213", "48213"), 0.2);
  EXPECT_DOUBLE_EQ(digit_share("no idea", "48213"), 0);
}

TEST(AnswerScoring, WordShare) {
  EXPECT_DOUBLE_EQ(word_share("under the blue barrel", "blue barrel"), 1);
  EXPECT_DOUBLE_EQ(word_share("under the blue stone", "blue barrel"), 0.5);
  EXPECT_DOUBLE_EQ(word_share("", "blue barrel"), 0);
}

}  // namespace
}  // namespace oscar::eval

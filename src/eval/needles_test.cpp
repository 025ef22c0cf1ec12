#include "eval/needles.h"

#include <gtest/gtest.h>

#include <set>

#include "base/test_files.h"

namespace oscar::eval {
namespace {

// A token is a word here.
std::int64_t words(std::string_view text) {
  std::int64_t count = 0;
  bool inside = false;
  for (const char c : text) {
    const bool space = c == ' ' || c == '\n';
    count += !space && !inside;
    inside = !space;
  }
  return count;
}

std::string prose(int num_sentences) {
  std::string text;
  for (int i = 0; i < num_sentences; ++i)
    text += (i ? " " : "") + std::string("Nothing happened today.");
  return text;
}

TEST(Document, CutsBetweenSentences) {
  const std::string text = "One two. Three four! Five\nsix seven.";
  EXPECT_EQ(sentence_ends(text), (std::vector<std::size_t>{8, 20, 26, text.size()}));
  EXPECT_EQ(cut_to_tokens(text, 4, words), "One two. Three four!");
  EXPECT_EQ(cut_to_tokens(text, 5, words), "One two. Three four! Five\n");
  EXPECT_EQ(cut_to_tokens(text, 1, words), "");
  EXPECT_EQ(cut_to_tokens(text, 100, words), text);
}

TEST(Needles, DifferFromEachOtherAndAreTheSameForASeed) {
  for (const NeedleForm form : {NeedleForm::kPasskey, NeedleForm::kSentence}) {
    const std::vector<Needle> needles = make_needles(form, kMaxNeedles, 7);
    std::set<std::string> answers, questions;
    for (const Needle& needle : needles) {
      EXPECT_NE(needle.sentence.find(needle.expected), std::string::npos);
      EXPECT_EQ(needle.question.find(needle.expected), std::string::npos);
      EXPECT_TRUE(score_needle(needle, needle.sentence).right) << needle.sentence;
      answers.insert(needle.expected);
      questions.insert(needle.question);
    }
    EXPECT_EQ(answers.size(), needles.size());
    EXPECT_EQ(questions.size(), needles.size());
    EXPECT_EQ(make_needles(form, 3, 7)[2].expected, make_needles(form, 3, 7)[2].expected);
    EXPECT_NE(make_needles(form, 1, 7)[0].sentence, make_needles(form, 1, 8)[0].sentence);
  }
  expect_error(ErrorCode::kInvalidArgument, {"17 needles", "16"},
               [] { make_needles(NeedleForm::kPasskey, 17, 1); });
  expect_error(ErrorCode::kInvalidArgument, {"'riddle'", "passkey, sentence"},
               [] { needle_form_from_name("riddle"); });
}

TEST(Needles, ScoresCountDigitsAndWords) {
  const Needle key = make_needles(NeedleForm::kPasskey, 1, 1)[0];
  EXPECT_TRUE(score_needle(key, " " + key.expected + ".").right);
  std::string close = key.expected;
  close[4] = close[4] == '9' ? '0' : static_cast<char>(close[4] + 1);
  EXPECT_FALSE(score_needle(key, close).right);
  EXPECT_DOUBLE_EQ(score_needle(key, close).share, 0.8);
  const Needle hidden = make_needles(NeedleForm::kSentence, 1, 1)[0];
  EXPECT_TRUE(score_needle(hidden, "It is in the " + hidden.expected).right);
  EXPECT_DOUBLE_EQ(score_needle(hidden, hidden.expected.substr(0, hidden.expected.find(' '))).share,
                   0.5);
}

TEST(Needles, StandAtTheirDepths) {
  const std::string text = prose(400);
  const std::vector<double> depths = {0, 0.25, 0.5, 1};
  const std::vector<Needle> needles = make_needles(NeedleForm::kSentence, 4, 3);
  for (const std::int64_t length : {100, 500, 1200, 5000}) {  // the last one repeats the text
    const std::string document = make_haystack(text, needles, depths, length, words);
    EXPECT_LE(words(document), length);
    EXPECT_GE(words(document), length - 10);
    for (std::size_t i = 0; i < needles.size(); ++i) {
      const std::size_t at = document.find(needles[i].sentence);
      ASSERT_NE(at, std::string::npos);
      EXPECT_EQ(document.find(needles[i].sentence, at + 1), std::string::npos);
      // Other needles and the sentence's end move it.
      const double slack = 300.0 / static_cast<double>(document.size());
      EXPECT_NEAR(static_cast<double>(at) / static_cast<double>(document.size()), depths[i], slack);
    }
  }
  expect_error(ErrorCode::kInvalidArgument, {"4 needle(s)", "longer than the 20"},
               [&] { make_haystack(text, needles, depths, 20, words); });
}

}  // namespace
}  // namespace oscar::eval

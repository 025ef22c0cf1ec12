// The grid, the cutting and the scoring, with answerers that are known.
#include "eval/retrieval.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/test_files.h"
#include "eval/answer_scoring.h"

namespace oscar::eval {
namespace {

// A token is a byte. Answers with the sentence of the document that shares the most words with the
// question, or with nothing from beyond its memory.
class Reader : public Answerer {
 public:
  explicit Reader(std::size_t memory_bytes) : memory_(memory_bytes) {}
  void read(std::string_view document) override {
    ++num_reads;
    document_ = document;
  }
  std::string answer(std::string_view question, std::int64_t) override {
    const std::string_view seen = std::string_view(document_).substr(0, memory_);
    std::string best;
    int best_score = 1;
    std::size_t start = 0;
    for (const std::size_t end : sentence_ends(seen)) {
      const std::string sentence(seen.substr(start, end - start));
      start = end;
      int score = 0;
      for (std::size_t word = question.find(' '); word != std::string_view::npos;
           word = question.find(' ', word + 1)) {
        const std::string_view tail =
            question.substr(word, question.find_first_of(" ?", word + 1) - word);
        score += sentence.find(tail) != std::string::npos;
      }
      if (score > best_score) {
        best_score = score;
        best = sentence;
      }
    }
    return best;
  }
  AnswererUse use() override { return {"reader", "reader", 16, document_.size()}; }
  std::int64_t count_tokens(std::string_view text) override {
    return static_cast<std::int64_t>(text.size());
  }
  int num_reads = 0;

 private:
  std::size_t memory_;
  std::string document_;
};

std::string hay() {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "Rain fell on the roofs all morning. ";
  return text;
}

NiahOptions grid() {
  NiahOptions options;
  options.lengths = {1000, 2000};
  options.num_seeds = 3;
  return options;
}

TEST(Niah, AReaderOfEverythingFindsEverything) {
  Reader reader(1 << 20);
  const NiahOptions options = grid();
  std::int64_t last = 0;
  const RetrievalRow row =
      run_niah(&reader, hay(), options, [&](std::int64_t done) { EXPECT_EQ(done, ++last); });
  EXPECT_EQ(std::ssize(row.asked), options.num_questions());
  EXPECT_EQ(last, 2 * 5 * 2 * 3);
  EXPECT_EQ(reader.num_reads, 2 * 2 * 3);  // one for all depths
  for (const AskedQuestion& asked : row.asked) EXPECT_TRUE(asked.right) << asked.answer;
  EXPECT_GT(row.use.kv_bytes, 1500u);
}

TEST(Niah, WhatIsForgottenCountsAtItsDepth) {
  Reader reader(500);
  NiahOptions options = grid();
  options.lengths = {2000};
  options.depths = {0, 0.5, 1};
  options.alone = true;
  const RetrievalRow row = run_niah(&reader, hay(), options, nullptr);
  EXPECT_EQ(reader.num_reads, 3 * 2 * 3);  // one for each needle
  for (const AskedQuestion& asked : row.asked) EXPECT_EQ(asked.right, asked.depth == 0);
  const RetrievalScore all = summarize_asked(
      row.asked, [](const auto&) { return true; }, 1);
  EXPECT_EQ(all.num_asked, 18);
  EXPECT_NEAR(all.right, 1.0 / 3.0, 1e-12);
  EXPECT_LT(all.right_interval.low, all.right);
  const RetrievalScore first = summarize_asked(
      row.asked, [](const auto& asked) { return asked.depth == 0; }, 1);
  EXPECT_EQ(first.num_asked, 6);
  EXPECT_DOUBLE_EQ(first.right_interval.low, 1);
}

TEST(Niah, ANeedleLongerThanTheContextIsRefusedBeforeAnythingIsAsked) {
  Reader reader(1 << 20);
  NiahOptions options = grid();
  options.lengths = {2000, 300};
  expect_error(ErrorCode::kInvalidArgument, {"5 needle(s)", "longer than"},
               [&] { run_niah(&reader, hay(), options, nullptr); });
  EXPECT_EQ(reader.num_reads, 0);
}

const char* const kDocument =
    "The pond is green. The barn is red. The roof is grey. The door is blue.";
const char* const kQuestions = R"([
  {"question": "Which colour is The pond?", "answers": ["green"], "evidence": "pond is green"},
  {"question": "Which colour is The door?", "answers": ["azure", "blue"],
   "evidence": "door is blue"}])";

TEST(Qa, QuestionsBeyondTheCutAreLeftOut) {
  const TestFolder folder;
  write_text(folder.file("q.json"), kQuestions);
  const std::vector<DocumentQuestion> questions = load_questions(folder.file("q.json"), kDocument);
  Reader reader(1 << 20);
  const RetrievalRow row = run_qa(&reader, kDocument, questions,
                                  {kReservedTokens + 1000, kReservedTokens + 40}, nullptr);
  ASSERT_EQ(row.asked.size(), 3u);
  EXPECT_EQ(reader.num_reads, 2);
  for (const AskedQuestion& asked : row.asked) EXPECT_TRUE(asked.right) << asked.answer;
  EXPECT_EQ(row.asked[2].context_tokens, kReservedTokens + 40);
  EXPECT_GT(row.asked[1].depth, 0.8);
  expect_error(ErrorCode::kInvalidArgument, {"--ctx", "cuts the document off"},
               [&] { run_qa(&reader, kDocument, questions, {kReservedTokens + 5}, nullptr); });
}

TEST(Qa, QuestionsThatCannotBeAnsweredAreRefused) {
  const TestFolder folder;
  const std::string path = folder.file("q.json");
  const auto refused = [&](const std::string& text, const std::vector<std::string>& parts) {
    write_text(path, text);
    expect_error(ErrorCode::kInvalidArgument, parts, [&] { load_questions(path, kDocument); });
  };
  refused("[]", {path, "no JSON list"});
  refused("[{\"question\": \"x\"}]", {path, "question 1", "answers"});
  refused(R"([{"question": "Why?", "answers": [], "evidence": "pond"}])", {"Why?", "no answers"});
  refused(R"([{"question": "Why?", "answers": ["x"], "evidence": "sky"}])", {"Why?", "sky"});
  refused(R"([{"question": "Why?", "answers": ["x"], "evidence": "The"}])", {"more than once"});
}

// The document that comes with the project: what the table of results stands on.
TEST(Qa, TheProjectsOwnQuestionsAreAnsweredByTheirEvidence) {
  const std::string document = read_text(OSCAR_DATA_FOLDER "/qa-document.txt");
  const std::vector<DocumentQuestion> questions =
      load_questions(OSCAR_DATA_FOLDER "/qa-questions.json", document);
  EXPECT_GE(questions.size(), 20u);
  for (const DocumentQuestion& question : questions) {
    // Answers that are spelled otherwise than the document are other forms of the same number.
    const auto in = [&](const std::string& text) {
      return answer_is_right(text, question.answers);
    };
    const std::size_t at = document.find(question.evidence);
    EXPECT_TRUE(in(document.substr(at, question.evidence.size() + 40))) << question.question;
    EXPECT_FALSE(in(question.question)) << question.question;
  }
}

}  // namespace
}  // namespace oscar::eval

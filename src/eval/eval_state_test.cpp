#include "eval/eval_state.h"

#include <gtest/gtest.h>

#include "base/test_files.h"

namespace oscar::eval {
namespace {

const RunIdentity kRun = {{"model", "abc"}, {"--ctx", "512"}};

WindowScores scores(double value) {
  WindowScores result;
  result.kl = {value, 0.1, 1e-300};
  result.log_prob = {-value, -1.0 / 3.0, -7};
  result.same_top = {1, 0, 1};
  result.decode_seconds = 1.5;
  return result;
}

TEST(EvalState, WhatWasAddedComesBackExactly) {
  const TestFolder folder;
  const std::string path = folder.file("r.json.state");
  {
    EvalState state(path, kRun, 2);
    EXPECT_TRUE(state.windows().empty());
    EXPECT_EQ(folder.num_entries(), 0);  // nothing is written before there is something to keep
    state.add({scores(0.3), scores(0.7)});
    state.add({scores(0.2), scores(0.9)});
  }
  const EvalState state(path, kRun, 2);
  ASSERT_EQ(state.windows().size(), 2u);
  EXPECT_EQ(state.windows()[1][1].kl, scores(0.9).kl);
  EXPECT_EQ(state.windows()[0][0].log_prob, scores(0.3).log_prob);
  EXPECT_EQ(state.windows()[0][0].same_top, scores(0.3).same_top);
  EvalState::remove(path);
  EXPECT_EQ(folder.num_entries(), 0);
}

TEST(EvalState, ALineThatWasCutOffIsDoneAgain) {
  const TestFolder folder;
  const std::string path = folder.file("state");
  EvalState(path, kRun, 1).add({scores(0.3)});
  const std::string whole = read_text(path);
  write_text(path, whole + whole.substr(whole.find('\n') + 1, 40));
  EvalState state(path, kRun, 1);
  ASSERT_EQ(state.windows().size(), 1u);
  state.add({scores(0.5)});
  EXPECT_EQ(EvalState(path, kRun, 1).windows().size(), 2u);
}

TEST(EvalState, AnotherRunIsRefusedByName) {
  const TestFolder folder;
  const std::string path = folder.file("state");
  EvalState(path, kRun, 1).add({scores(0.3)});
  expect_error(ErrorCode::kMismatch, {path, "another model", "abc", "xyz"}, [&] {
    EvalState(path, {{"model", "xyz"}, {"--ctx", "512"}}, 1);
  });
  expect_error(ErrorCode::kMismatch, {path, "another --ctx", "512", "1024"}, [&] {
    EvalState(path, {{"model", "abc"}, {"--ctx", "1024"}}, 1);
  });
  const std::string text = read_text(path);
  write_text(path, "{\"oscar_eval_state\":99,\"run\":{}}\n");
  expect_error(ErrorCode::kMismatch, {path, "version 99"}, [&] { EvalState(path, kRun, 1); });
  write_text(path, "something else\n");
  expect_error(ErrorCode::kCorrupt, {path}, [&] { EvalState(path, kRun, 1); });
}

TEST(EvalState, WithoutAPathNothingIsKept) {
  EvalState state("", kRun, 1);
  state.add({scores(1)});
  EXPECT_EQ(state.windows().size(), 1u);
}

}  // namespace
}  // namespace oscar::eval

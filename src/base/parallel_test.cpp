#include "base/parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

namespace oscar {
namespace {

TEST(ParallelFor, EveryTaskOnceOnALegalThread) {
  for (const int num_threads : {-3, 0, 1, 2, 3, 8}) {
    for (const std::int64_t num_tasks : {0, 1, 2, 5, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(num_tasks));
      std::atomic<int> illegal{0};
      const int team = std::max(1, num_threads);
      parallel_for(num_threads, num_tasks, [&](std::int64_t task, int thread) {
        ++calls[static_cast<std::size_t>(task)];
        if (thread < 0 || thread >= team) ++illegal;
      });
      for (const auto& count : calls) ASSERT_EQ(count, 1);
      EXPECT_EQ(illegal, 0) << num_threads << " threads, " << num_tasks << " tasks";
    }
  }
}

// A thread is the caller's scratch index: two tasks at once must never get the same one.
TEST(ParallelFor, ThreadIndexIsExclusive) {
  constexpr int kThreads = 4;
  std::vector<std::atomic<int>> busy(kThreads);
  std::atomic<int> clashes{0};
  parallel_for(kThreads, 2000, [&](std::int64_t, int thread) {
    if (busy[static_cast<std::size_t>(thread)]++ != 0) ++clashes;
    busy[static_cast<std::size_t>(thread)]--;
  });
  EXPECT_EQ(clashes, 0);
}

TEST(ParallelFor, OneThreadGoesInOrder) {
  std::vector<std::int64_t> order;
  parallel_for(1, 5, [&](std::int64_t task, int) { order.push_back(task); });
  EXPECT_EQ(order, (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
}

#ifdef __SANITIZE_THREAD__
// What the preset "tsan" is for: two tasks that write one value are reported.
TEST(ParallelForDeathTest, TheThreadSanitizerSeesARace) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  constexpr int kExitCode = 66;  // the sanitizer's
  const auto race = [] {
    long sum = 0;
    parallel_for(3, 50, [&](std::int64_t task, int) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // so that every thread gets some
      sum += static_cast<long>(task);
    });
    std::exit(0);
  };
  EXPECT_EXIT(race(), testing::ExitedWithCode(kExitCode), "data race");
}
#endif

}  // namespace
}  // namespace oscar

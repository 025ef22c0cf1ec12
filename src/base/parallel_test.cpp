#include "base/parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
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

}  // namespace
}  // namespace oscar

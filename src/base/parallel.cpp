#include "base/parallel.h"

#include <algorithm>

// Under the thread sanitizer the team is made of std::threads: it cannot see the barriers of
// libgomp, which is not instrumented, and would have to be told to leave out every stack that
// libgomp is in, that is, every task.
#if defined(__SANITIZE_THREAD__)
#define OSCAR_VISIBLE_THREADS 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define OSCAR_VISIBLE_THREADS 1
#endif
#endif

#ifdef OSCAR_VISIBLE_THREADS
#include <atomic>
#include <thread>
#include <vector>
#else
#include <omp.h>
#endif

namespace oscar {
namespace {

using Body = std::function<void(std::int64_t task, int thread)>;

#ifdef OSCAR_VISIBLE_THREADS
void run_team(int team, std::int64_t num_tasks, const Body& body) {
  std::atomic<std::int64_t> next{0};
  const auto work = [&](int thread) {
    // Relaxed, so that handing out a task orders nothing: the sanitizer judges tasks as
    // independent.
    for (;;) {
      const std::int64_t task = next.fetch_add(1, std::memory_order_relaxed);
      if (task >= num_tasks) return;
      body(task, thread);
    }
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < team; ++thread) others.emplace_back(work, thread);
  work(0);
  for (std::thread& other : others) other.join();
}
#else
void run_team(int team, std::int64_t num_tasks, const Body& body) {
#pragma omp parallel num_threads(team)
  {
    const int thread = omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t task = 0; task < num_tasks; ++task) body(task, thread);
  }
}
#endif

}  // namespace

void parallel_for(int num_threads, std::int64_t num_tasks, const Body& body) {
  if (num_tasks <= 0) return;
  const int team = std::max(num_threads, 1);
  if (team == 1 || num_tasks == 1) {
    for (std::int64_t task = 0; task < num_tasks; ++task) body(task, 0);
    return;
  }
  run_team(team, num_tasks, body);
}

}  // namespace oscar

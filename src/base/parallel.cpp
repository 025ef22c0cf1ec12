#include "base/parallel.h"

#include <omp.h>

#include <algorithm>

namespace oscar {

void parallel_for(int num_threads, std::int64_t num_tasks,
                  const std::function<void(std::int64_t task, int thread)>& body) {
  if (num_tasks <= 0) return;
  const int team = std::max(num_threads, 1);
  if (team == 1 || num_tasks == 1) {
    for (std::int64_t task = 0; task < num_tasks; ++task) body(task, 0);
    return;
  }
#pragma omp parallel num_threads(team)
  {
    const int thread = omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t task = 0; task < num_tasks; ++task) body(task, thread);
  }
}

}  // namespace oscar

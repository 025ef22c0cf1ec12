// Data parallelism over OpenMP (libgomp), so that inside llama.cpp the same thread team is reused.
#pragma once

#include <cstdint>
#include <functional>

namespace oscar {

// Calls body(task, thread) for every task in [0, num_tasks); thread in [0, num_threads). Tasks are
// handed out in order, one at a time. num_threads is clamped to [1, num_tasks]. body must not
// throw.
void parallel_for(int num_threads, std::int64_t num_tasks,
                  const std::function<void(std::int64_t task, int thread)>& body);

}  // namespace oscar

// Data parallelism over OpenMP (libgomp), so that inside llama.cpp the same thread team is reused.
#pragma once

#include <cstdint>
#include <functional>

namespace oscar {

// Calls body(task, thread) for every task in [0, num_tasks); thread in [0, num_threads). Tasks are
// handed out in order, one at a time. A num_threads below 1 counts as 1. body must not throw.
//
// The team has num_threads threads even when there are fewer tasks: libgomp ends the threads that a
// smaller team leaves over and starts new ones for the next larger one, which costs more than tasks
// of a decoding step do. One task runs on the calling thread, without a team.
void parallel_for(int num_threads, std::int64_t num_tasks,
                  const std::function<void(std::int64_t task, int thread)>& body);

}  // namespace oscar

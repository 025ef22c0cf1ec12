#include "eval/instruction_counter.h"

#include <gtest/gtest.h>
#include <linux/perf_event.h>

#include <chrono>
#include <cstdio>
#include <thread>

namespace oscar::eval {
namespace {

std::uint64_t work(std::uint64_t steps) {
  volatile std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < steps; ++i) sum = sum + i;
  return sum;
}

// A number that grows with the work, of later threads too; or the reason why there is none.
TEST(InstructionCounter, CountsOrSaysWhyNot) {
  const InstructionCounter counter;
  if (!counter.reason().empty()) {
    std::printf("not counted: %s\n", counter.reason().c_str());
    EXPECT_EQ(counter.reason().find('\n'), std::string::npos);
    EXPECT_FALSE(counter.count());
    return;
  }
  const double start = counter.count().value();
  work(1'000'000);
  const double middle = counter.count().value();
  std::thread([] { work(1'000'000); }).join();
  const double end = counter.count().value();
  // A load, an addition, a store, a comparison at least.
  EXPECT_GT(middle - start, 3e6);
  EXPECT_GT(end - middle, 3e6);
  EXPECT_LT(end - middle, 2 * (middle - start));
}

// The same code on a counter that needs no hardware, the time on the processor in ns.
TEST(InstructionCounter, CountsThreadsThatStartLater) {
  const InstructionCounter counter({PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK});
  if (!counter.reason().empty()) {
    std::printf("not counted: %s\n", counter.reason().c_str());
    return;
  }
  const auto busy = [] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    while (std::chrono::steady_clock::now() < end) work(1000);
  };
  const double start = counter.count().value();
  std::thread one(busy), two(busy);
  one.join();
  two.join();
  // Two threads of 20 ms, which others may have kept from the processor for most of it.
  EXPECT_GT(counter.count().value() - start, 4e6);
}

TEST(InstructionCounter, AnEventThatDoesNotExistHasAReason) {
  const InstructionCounter counter({0xffff, 0});
  EXPECT_FALSE(counter.reason().empty());
  EXPECT_FALSE(counter.count());
}

}  // namespace
}  // namespace oscar::eval

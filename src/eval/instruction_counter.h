// Instructions that a piece of this program takes, where the processor's counters may be read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace oscar::eval {

// Counts what the thread that makes it executes in user space, and the threads that it starts from
// then on, those of OpenMP among them: make it before the first of them. Waiting threads that spin
// are counted like others.
class InstructionCounter {
 public:
  // What perf_event_open(2) counts; the default is instructions. Tests count something that every
  // machine has.
  struct Event {
    std::uint32_t type;
    std::uint64_t config;
  };
  InstructionCounter();
  explicit InstructionCounter(Event event);
  ~InstructionCounter();
  InstructionCounter(const InstructionCounter&) = delete;
  InstructionCounter& operator=(const InstructionCounter&) = delete;

  // Why nothing is counted, one line; "" where it is.
  const std::string& reason() const { return reason_; }
  // So far; empty where nothing is counted.
  std::optional<double> count() const;

 private:
  int file_ = -1;
  std::string reason_;
};

// Of a counter that may be null.
inline std::optional<double> count_of(const InstructionCounter* counter) {
  return counter == nullptr ? std::nullopt : counter->count();
}

}  // namespace oscar::eval

#include "eval/instruction_counter.h"

#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace oscar::eval {
namespace {

std::string why(int error) {
  if (error == ENOENT || error == EOPNOTSUPP || error == ENODEV) {
    return "this machine has no counter of instructions (a virtual machine without one?)";
  }
  if (error == ENOSYS) return "this system has no perf_event_open";
  if (error == EACCES || error == EPERM) {
    std::string paranoid = "unknown";
    std::ifstream("/proc/sys/kernel/perf_event_paranoid") >> paranoid;
    return "counting is not permitted (kernel.perf_event_paranoid is " + paranoid +
           "; needed: 2 or less, and no filter of system calls)";
  }
  return std::string("perf_event_open: ") + std::strerror(error);
}

}  // namespace

InstructionCounter::InstructionCounter()
    : InstructionCounter({PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS}) {}

InstructionCounter::InstructionCounter(Event event) {
  perf_event_attr attributes = {};
  attributes.size = sizeof attributes;
  attributes.type = event.type;
  attributes.config = event.config;
  attributes.inherit = 1;
  attributes.exclude_kernel = 1;
  attributes.exclude_hv = 1;
  // Shared with other counters, events run a part of the time; values are scaled by that.
  attributes.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
  file_ = static_cast<int>(
      ::syscall(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC));
  if (file_ < 0) reason_ = why(errno);
}

InstructionCounter::~InstructionCounter() {
  if (file_ >= 0) ::close(file_);
}

std::optional<double> InstructionCounter::count() const {
  struct {
    std::uint64_t value, enabled_ns, running_ns;
  } read = {};
  if (file_ < 0 || ::read(file_, &read, sizeof read) != sizeof read || read.running_ns == 0) {
    return std::nullopt;
  }
  return static_cast<double>(read.value) * static_cast<double>(read.enabled_ns) /
         static_cast<double>(read.running_ns);
}

}  // namespace oscar::eval

// Other programs: run to the end with their output kept, or in our place.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace oscar::tool {

// Variables to set; an empty value removes one.
using Environment = std::map<std::string, std::string>;

struct ProcessResult {
  int status = 0;      // exit status; 128 + the signal's number where a signal ended it
  std::string output;  // of standard output and error together, at most 1 MiB
};

// Throws Error(kIo) when it cannot be started; kills it after `seconds`. Where SIGINT or SIGTERM
// asks this program to stop, kills it too and throws Error(kInterrupted).
ProcessResult run_process(const std::vector<std::string>& command, const Environment& environment,
                          int seconds);

// Becomes the program. Throws Error(kIo) where the system refuses.
[[noreturn]] void become_process(const std::vector<std::string>& command,
                                 const Environment& environment);

// Starts it in a process group of its own and returns its id; it is killed when this process ends,
// however that happens.
int start_process(const std::vector<std::string>& command, const Environment& environment);

}  // namespace oscar::tool

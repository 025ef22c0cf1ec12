#include "subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "support.h"

namespace oscar::tool {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxOutputBytes = 1 << 20;
constexpr int kCannotStart = 127;
constexpr std::int64_t kPollMilliseconds = 100;

void apply(const Environment& environment) {
  for (const auto& [name, value] : environment) {
    if (value.empty()) {
      ::unsetenv(name.c_str());
    } else {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
}

void execute(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& argument : command)
    arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  // A file that may not grow stays an error of the write there too: a save of a slot then gets an
  // answer, and the server goes on.
  ::signal(SIGXFSZ, SIG_IGN);
  ::signal(SIGPIPE, SIG_DFL);
  ::execv(arguments[0], arguments.data());
}

[[noreturn]] void cannot_start(const std::string& program, int reason) {
  throw Error(ErrorCode::kIo, program + ": cannot start: " + std::strerror(reason));
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& command, const Environment& environment,
                          int seconds) {
  int out[2];
  if (::pipe2(out, O_CLOEXEC) != 0) cannot_start(command[0], errno);
  const pid_t child = ::fork();
  if (child < 0) cannot_start(command[0], errno);
  if (child == 0) {
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(out[1], STDERR_FILENO);
    apply(environment);
    execute(command);
    ::_exit(kCannotStart);
  }
  ::close(out[1]);
  ProcessResult result;
  const Clock::time_point end = Clock::now() + std::chrono::seconds(seconds);
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0 || stop_flag().load()) {
      ::kill(child, SIGKILL);
      break;
    }
    // Not for all the time left: a signal may have come just before. Without a byte to read it was
    // a signal, or nothing.
    pollfd ready{out[0], POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(std::min<std::int64_t>(left, kPollMilliseconds))) <= 0) {
      continue;
    }
    char bytes[4096];
    const ssize_t count = ::read(out[0], bytes, sizeof bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    if (result.output.size() < kMaxOutputBytes)
      result.output.append(bytes, static_cast<std::size_t>(count));
  }
  ::close(out[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  throw_if_stopped();
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (result.status == kCannotStart && result.output.empty()) cannot_start(command[0], ENOEXEC);
  return result;
}

void become_process(const std::vector<std::string>& command, const Environment& environment) {
  apply(environment);
  execute(command);
  cannot_start(command[0], errno);
}

int start_process(const std::vector<std::string>& command, const Environment& environment) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) cannot_start(command[0], errno);
  if (child > 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kCannotStart);  // it ended before the line above
  // Ctrl-C goes to a terminal's whole foreground group; it should come from this program, once.
  ::setpgid(0, 0);
  apply(environment);
  execute(command);
  ::_exit(kCannotStart);
}

}  // namespace oscar::tool

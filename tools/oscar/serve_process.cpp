#include "serve_process.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/error.h"
#include "http_message.h"
#include "support.h"

namespace oscar::tool {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kPollMilliseconds = 100, kRefusalMilliseconds = 20;
constexpr int kMaxConnections = 256;  // each has a thread and two descriptors
constexpr int kInterruptedExit = 130;

std::atomic<int> num_signals{0};
std::atomic<int> num_connections{0};

void on_signal(int) { ++num_signals; }

void catch_stop_signals() {
  struct sigaction action {
  }, old{};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    // nohup's stays ignored.
    ::sigaction(signal, nullptr, &old);
    if (signal == SIGHUP && old.sa_handler == SIG_IGN) continue;
    ::sigaction(signal, &action, nullptr);
  }
  if (stop_flag().load()) ++num_signals;
}

// A folder that only this user sees, gone with the object. While it is in use its file "lock" is
// locked; what a process that was killed has left is removed by the next one.
class PrivateFolder {
 public:
  PrivateFolder() {
    remove_abandoned();
    // mkdtemp puts a name of its own in place of the X.
    std::string path = (fs::temp_directory_path() / (kPrefix + "XXXXXX")).string();
    if (::mkdtemp(path.data()) == nullptr) {
      throw Error(ErrorCode::kIo, path + ": cannot create: " + std::strerror(errno));
    }
    path_ = path;
    // Locked before it has the name that others look for.
    const std::string fresh = path_ + "/new-lock";
    lock_ = Socket(::open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (::flock(lock_.fd(), LOCK_EX | LOCK_NB) == 0) {
      ::rename(fresh.c_str(), (path_ + kLock).c_str());
    }
  }
  ~PrivateFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  static inline const std::string kPrefix = "oscar-serve-", kLock = "/lock";

  static void remove_abandoned() {
    std::error_code ignored;
    for (const fs::directory_entry& entry :
         fs::directory_iterator(fs::temp_directory_path(), ignored)) {
      const std::string path = entry.path().string();
      struct stat status {};
      if (entry.path().filename().string().rfind(kPrefix, 0) != 0 ||
          ::lstat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) ||
          status.st_uid != ::geteuid() || (status.st_mode & 077) != 0) {
        continue;
      }
      const Socket lock(::open((path + kLock).c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
      if (lock && ::flock(lock.fd(), LOCK_EX | LOCK_NB) == 0) fs::remove_all(path, ignored);
    }
  }

  std::string path_;
  Socket lock_;  // any descriptor
};

// Waits hardly for the request, which would take the answer back from the client if it came after
// the end of the connection, and not for a client that does not read.
void refuse_connection(const Socket& client) {
  pollfd ready{client.fd(), POLLIN, 0};
  ::poll(&ready, 1, kRefusalMilliseconds);
  const std::string answer =
      error_response(503, "unavailable_error",
                     "there are " + std::to_string(kMaxConnections) + " connections already");
  ::send(client.fd(), answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::shutdown(client.fd(), SHUT_WR);
  char bytes[4096];
  while (::recv(client.fd(), bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
  }
}

void start_connection(int fd, const std::shared_ptr<const SlotProxy>& proxy) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  auto client = std::make_shared<Socket>(fd);
  if (num_connections.load() >= kMaxConnections) {
    refuse_connection(*client);
    return;
  }
  ++num_connections;
  try {
    std::thread([client, proxy]() mutable {
      try {
        proxy->serve(*client);
      } catch (const std::exception& error) {
        warn(std::string("a connection failed: ") + error.what());
      }
      client.reset();
      --num_connections;
    }).detach();
  } catch (const std::system_error& error) {
    --num_connections;
    warn(std::string("a connection was refused: ") + error.what());
  }
}

int exit_status(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int kill_and_wait(pid_t child) {
  int status = 0;
  ::kill(child, SIGKILL);
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace

int serve_behind_proxy(Socket listener, const std::vector<std::string>& server_command,
                       const Environment& environment, SlotProxyOptions options) {
  catch_stop_signals();
  const PrivateFolder folder;
  options.upstream = folder.path() + "/server.sock";
  const auto proxy = std::make_shared<const SlotProxy>(options);
  std::vector<std::string> command = server_command;
  command.insert(command.end(), {"--host", options.upstream, "--port", "1"});
  const int child = start_process(command, environment);
  Clock::time_point killed_at{};
  bool told = false, warned = false;
  for (;;) {
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) == child) return exit_status(status);
    if (num_signals.load() > 0 && !told) {
      told = true;
      killed_at = Clock::now() + std::chrono::seconds(kGraceSeconds);
      ::kill(child, SIGTERM);
    }
    if (num_signals.load() > 1) {
      kill_and_wait(child);
      return kInterruptedExit;
    }
    if (told && Clock::now() >= killed_at) {
      warn("llama-server still waits for a client after " + std::to_string(kGraceSeconds) +
           " s; it is killed");
      kill_and_wait(child);
      return 0;
    }
    pollfd ready{listener.fd(), POLLIN, 0};
    if (::poll(&ready, 1, kPollMilliseconds) <= 0) continue;
    const int fd = ::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) {
      start_connection(fd, proxy);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      // The connection stays there to be taken: without a pause this would not wait at all.
      if (!warned) warn(std::string("no connection can be taken: ") + std::strerror(errno));
      warned = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(kPollMilliseconds));
    }
  }
}

}  // namespace oscar::tool

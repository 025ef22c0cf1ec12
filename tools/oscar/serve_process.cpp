#include "serve_process.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/error.h"
#include "support.h"

namespace oscar::tool {
namespace {

constexpr int kPollMilliseconds = 100;

// A folder that only this user sees, gone with the object.
class PrivateFolder {
 public:
  PrivateFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "oscar-serve-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) {
      throw Error(ErrorCode::kIo, path + ": cannot create: " + std::strerror(errno));
    }
    path_ = path;
  }
  ~PrivateFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void start_connection(int fd, const std::shared_ptr<const SlotProxy>& proxy) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  auto client = std::make_shared<Socket>(fd);
  try {
    std::thread([client, proxy] {
      try {
        proxy->serve(*client);
      } catch (const std::exception& error) {
        warn(std::string("a connection failed: ") + error.what());
      }
    }).detach();
  } catch (const std::system_error& error) {
    warn(std::string("a connection was refused: ") + error.what());
  }
}

}  // namespace

int serve_behind_proxy(Socket listener, const std::vector<std::string>& server_command,
                       const Environment& environment, SlotProxyOptions options) {
  const PrivateFolder folder;
  options.upstream = folder.path() + "/server.sock";
  const auto proxy = std::make_shared<const SlotProxy>(options);
  std::vector<std::string> command = server_command;
  command.insert(command.end(), {"--host", options.upstream, "--port", "1"});
  const int child = start_process(command, environment);
  bool told = false;
  for (;;) {
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) == child) {
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    if (stop_flag().load() && !told) {
      told = true;
      ::kill(child, SIGTERM);
    }
    pollfd ready{listener.fd(), POLLIN, 0};
    if (::poll(&ready, 1, kPollMilliseconds) <= 0) continue;
    const int fd = ::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) start_connection(fd, proxy);
  }
}

}  // namespace oscar::tool

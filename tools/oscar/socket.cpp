#include "socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace oscar::tool {
namespace {

constexpr std::size_t kPieceBytes = 16 << 10;
constexpr int kBacklog = 512;
constexpr std::chrono::seconds kLinger(1);

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

Socket::Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

bool Socket::send_all(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

bool Socket::receive(std::string* bytes) const {
  char piece[kPieceBytes];
  for (;;) {
    const ssize_t count = ::recv(fd_, piece, sizeof piece, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes->append(piece, static_cast<std::size_t>(count));
    return true;
  }
}

bool Socket::receive_until(std::chrono::steady_clock::time_point end, std::string* bytes,
                           bool* timed_out) const {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    pollfd ready{fd_, POLLIN, 0};
    const int count = ::poll(&ready, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    if (count < 0 && errno == EINTR) continue;
    *timed_out = count == 0;
    return count > 0 && receive(bytes);
  }
}

void Socket::finish() const {
  ::shutdown(fd_, SHUT_WR);
  const auto end = std::chrono::steady_clock::now() + kLinger;
  std::string bytes;
  for (bool timed_out = false; receive_until(end, &bytes, &timed_out); bytes.clear()) {
  }
}

Socket listen_on(const std::string& host, int port) {
  const std::string where = host + ", port " + std::to_string(port);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (status != 0) {
    throw Error(ErrorCode::kNotFound,
                "--host " + in_quotes(host) + ": " + std::string(::gai_strerror(status)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  Socket listener(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(listener.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!listener || ::bind(listener.fd(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(listener.fd(), kBacklog) != 0) {
    throw Error(ErrorCode::kIo, "cannot listen on " + where + ": " + std::strerror(errno) +
                                    "; choose another with --port");
  }
  return listener;
}

Socket connect_to(const std::string& unix_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (unix_path.size() >= sizeof address.sun_path) return Socket();
  std::memcpy(address.sun_path, unix_path.data(), unix_path.size());
  Socket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto* target = reinterpret_cast<const sockaddr*>(&address);
  if (!socket || ::connect(socket.fd(), target, sizeof address) != 0) return Socket();
  return socket;
}

bool relay(const Socket& client, const Socket& server) {
  bool server_takes = true;  // it may answer, and close, before it has read all of a request
  for (;;) {
    pollfd ready[] = {{server_takes ? client.fd() : -1, POLLIN, 0}, {server.fd(), POLLIN, 0}};
    if (::poll(ready, 2, -1) < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    std::string bytes;
    if (ready[1].revents != 0) {
      if (!server.receive(&bytes)) return true;
      if (!client.send_all(bytes)) return false;
      bytes.clear();
    }
    if (ready[0].revents == 0) continue;
    // A client that has gone takes its request along: the server sees its own connection close.
    if (!client.receive(&bytes)) return false;
    server_takes = server.send_all(bytes);
  }
}

}  // namespace oscar::tool

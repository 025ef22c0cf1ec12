// Sockets with an owner, and the few things done with them. Failures are results, not exceptions,
// except where a server is set up.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace oscar::tool {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;

  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // False when the other side is gone.
  bool send_all(std::string_view bytes) const;
  // Appends what has come, at least a byte; false at the end or on an error.
  bool receive(std::string* bytes) const;
  // False too when nothing has come by then; `timed_out` says that.
  bool receive_until(std::chrono::steady_clock::time_point end, std::string* bytes,
                     bool* timed_out) const;
  // Says that nothing more will be sent, and reads on for a moment: closing with bytes unread would
  // take the answer back from a client that is still sending.
  void finish() const;

 private:
  int fd_ = -1;
};

// Throws Error(kIo) naming host and port and the system's reason; Error(kNotFound) when the host's
// name is not known.
Socket listen_on(const std::string& host, int port);
Socket connect_to(const std::string& unix_path);  // false when nobody listens there

// Both directions until the server has answered and closes, or the client is gone. True when the
// answer was passed on to its end.
bool relay(const Socket& client, const Socket& server);

}  // namespace oscar::tool

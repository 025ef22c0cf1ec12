// Just enough of HTTP/1.1 to stand in front of a server: heads of requests, and whole responses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace oscar::tool {

inline constexpr std::size_t kMaxHeadBytes = 64 << 10;

struct HttpRequest {
  std::string method, target;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case

  std::string header(const std::string& name) const;  // "" when there is none
  std::string path() const;                           // decoded, without query and fragment
  // Of the body; nothing when it comes in chunks or the number is none.
  std::optional<std::uint64_t> content_length() const;
};

// head: up to and with the empty line. Nothing when it is not HTTP/1.x.
std::optional<HttpRequest> parse_request(std::string_view head);

// A line of the head that ends in LF alone, which no server behind this one would take.
bool has_bare_line_feed(std::string_view head);

// The same head, asking to close the connection after the answer.
std::string with_connection_close(std::string_view head);

struct HttpResponse {
  int status = 0;
  std::string body;
};
// bytes: all that a server sent until it closed. Nothing when it is no whole answer. Bodies in
// chunks are joined.
std::optional<HttpResponse> parse_response(std::string_view bytes);

// An answer that closes the connection; the body is JSON.
std::string json_response(int status, const std::string& body);
// In the form of llama-server's own errors.
std::string error_response(int status, const std::string& type, const std::string& message);

}  // namespace oscar::tool

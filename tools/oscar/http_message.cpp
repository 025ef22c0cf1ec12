#include "http_message.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <nlohmann/json.hpp>

namespace oscar::tool {
namespace {

constexpr std::string_view kLineEnd = "\r\n";

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// The next line without its end; `rest` moves behind it. Nothing when there is no whole line.
std::optional<std::string_view> take_line(std::string_view* rest) {
  const std::size_t end = rest->find(kLineEnd);
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = rest->substr(0, end);
  rest->remove_prefix(end + kLineEnd.size());
  return line;
}

std::string decoded(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, value, 16).ptr ==
            text.data() + i + 3) {
      result += static_cast<char>(value);
      i += 2;
    } else {
      result += text[i];
    }
  }
  return result;
}

const char* reason_of(int status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 404: return "Not Found";
    case 408: return "Request Timeout";
    case 413: return "Payload Too Large";
    case 431: return "Request Header Fields Too Large";
    case 502: return "Bad Gateway";
    case 503: return "Service Unavailable";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    default: return "Error";
  }
}

std::optional<std::string> joined_chunks(std::string_view body) {
  std::string result;
  for (;;) {
    const auto line = take_line(&body);
    if (!line) return std::nullopt;
    std::uint64_t size = 0;
    const auto [end, status] = std::from_chars(line->data(), line->data() + line->size(), size, 16);
    if (status != std::errc() || size > body.size()) return std::nullopt;
    if (size == 0) return result;
    result.append(body.substr(0, size));
    body.remove_prefix(std::min(size + kLineEnd.size(), body.size()));
  }
}

}  // namespace

std::string HttpRequest::header(const std::string& name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return "";
}

std::string HttpRequest::path() const {
  return decoded(std::string_view(target).substr(0, target.find_first_of("?#")));
}

std::optional<std::uint64_t> HttpRequest::content_length() const {
  const std::string text = header("content-length");
  if (text.empty()) {
    return header("transfer-encoding").empty() ? std::optional<std::uint64_t>(0) : std::nullopt;
  }
  std::uint64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<HttpRequest> parse_request(std::string_view head) {
  const auto first = take_line(&head);
  if (!first) return std::nullopt;
  const std::size_t method_end = first->find(' ');
  const std::size_t target_end = first->rfind(' ');
  if (method_end == std::string_view::npos || target_end <= method_end ||
      first->substr(target_end + 1).rfind("HTTP/1.", 0) != 0) {
    return std::nullopt;
  }
  HttpRequest request;
  request.method = first->substr(0, method_end);
  request.target = trimmed(first->substr(method_end, target_end - method_end));
  while (const auto line = take_line(&head)) {
    if (line->empty()) return request;
    const std::size_t colon = line->find(':');
    if (colon == std::string_view::npos) return std::nullopt;
    request.headers.emplace_back(lower(line->substr(0, colon)), trimmed(line->substr(colon + 1)));
  }
  return std::nullopt;
}

bool has_bare_line_feed(std::string_view head) {
  for (std::size_t at = head.find('\n'); at != std::string_view::npos;
       at = head.find('\n', at + 1)) {
    if (at == 0 || head[at - 1] != '\r') return true;
  }
  return false;
}

std::string with_connection_close(std::string_view head) {
  std::string result;
  while (const auto line = take_line(&head)) {
    if (line->empty()) break;
    const std::string name = lower(line->substr(0, line->find(':')));
    if (name == "connection" || name == "keep-alive") continue;
    result.append(*line).append(kLineEnd);
  }
  return result + "Connection: close\r\n\r\n";
}

std::optional<HttpResponse> parse_response(std::string_view bytes) {
  const auto first = take_line(&bytes);
  HttpResponse response;
  if (!first || first->rfind("HTTP/1.", 0) != 0 || first->size() < 12 ||
      std::from_chars(first->data() + 9, first->data() + 12, response.status).ec != std::errc()) {
    return std::nullopt;
  }
  std::optional<std::uint64_t> length;
  bool chunked = false;
  for (;;) {
    const auto line = take_line(&bytes);
    if (!line) return std::nullopt;
    if (line->empty()) break;
    const std::size_t colon = std::min(line->find(':'), line->size() - 1);
    const std::string name = lower(line->substr(0, colon));
    const std::string_view value = trimmed(line->substr(colon + 1));
    std::uint64_t number = 0;
    if (name == "content-length" &&
        std::from_chars(value.data(), value.data() + value.size(), number).ec == std::errc()) {
      length = number;
    }
    chunked = chunked || (name == "transfer-encoding" && lower(value) == "chunked");
  }
  if (chunked) {
    const auto body = joined_chunks(bytes);
    if (!body) return std::nullopt;
    response.body = *body;
    return response;
  }
  if (length && *length > bytes.size()) return std::nullopt;
  response.body = bytes.substr(0, length.value_or(bytes.size()));
  return response;
}

std::string json_response(int status, const std::string& body) {
  return "HTTP/1.1 " + std::to_string(status) + " " + reason_of(status) +
         "\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + body;
}

std::string error_response(int status, const std::string& type, const std::string& message) {
  const nlohmann::ordered_json body = {
      {"error", {{"code", status}, {"message", message}, {"type", type}}}};
  return json_response(status,
                       body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace oscar::tool

// Requests to an OpenAI-compatible server, over libcurl.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace oscar::eval {

// Keeps one connection. Not thread-safe.
class HttpClient {
 public:
  // base_url: "http://host:port", with or without "/v1" or "/" at its end. Every request carries
  // "Authorization: Bearer TOKEN" where `token` is not empty. `stop`: as in HostOptions.
  HttpClient(std::string base_url, std::string token, const std::atomic<bool>* stop);
  HttpClient(HttpClient&& other) noexcept;
  ~HttpClient();

  // `path` follows ".../v1". An answer that is no JSON, or has another status than 2xx, throws
  // Error(kUnsupported) with the address, the status and what the server says; no answer throws
  // Error(kIo) with the reason.
  nlohmann::json get(const std::string& path);
  nlohmann::json post(const std::string& path, const nlohmann::json& body);
  const std::string& base_url() const { return base_url_; }

 private:
  nlohmann::json request(const std::string& path, const std::string* body);

  struct Handle;
  std::string base_url_, token_;
  const std::atomic<bool>* stop_;
  std::unique_ptr<Handle> handle_;
};

}  // namespace oscar::eval

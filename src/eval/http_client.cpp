#include "eval/http_client.h"

#include <curl/curl.h>

#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace oscar::eval {
namespace {

// A long prompt on a slow machine takes its time; a server that is not there must show soon.
constexpr long kConnectSeconds = 10, kAnswerSeconds = 1800;
constexpr std::size_t kMaxAnswerBytes = std::size_t{64} << 20;

std::size_t on_bytes(char* bytes, std::size_t size, std::size_t count, void* sink) {
  auto& text = *static_cast<std::string*>(sink);
  if (text.size() + size * count > kMaxAnswerBytes) return 0;
  text.append(bytes, size * count);
  return size * count;
}

int on_progress(void* stop, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const auto* flag = static_cast<const std::atomic<bool>*>(stop);
  return flag != nullptr && flag->load() ? 1 : 0;
}

std::string with_version(std::string url) {
  while (!url.empty() && url.back() == '/') url.pop_back();
  const std::string version = "/v1";
  if (url.size() < version.size() || url.substr(url.size() - version.size()) != version) {
    url += version;
  }
  return url;
}

// What the server says is wrong: {"error": {"message": …}}, {"error": …} or the text itself.
std::string complaint(const nlohmann::json& answer, const std::string& text) {
  if (!answer.is_object() || !answer.contains("error")) return text;
  const nlohmann::json& error = answer["error"];
  if (error.is_object() && error.contains("message") && error["message"].is_string()) {
    return error["message"];
  }
  return error.is_string() ? error.get<std::string>() : error.dump();
}

}  // namespace

struct HttpClient::Handle {
  CURL* curl = curl_easy_init();
  curl_slist* headers = nullptr;
  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
  }
};

HttpClient::HttpClient(std::string base_url, std::string token, const std::atomic<bool>* stop)
    : base_url_(with_version(std::move(base_url))),
      token_(std::move(token)),
      stop_(stop),
      handle_(std::make_unique<Handle>()) {
  if (handle_->curl == nullptr) throw Error(ErrorCode::kUnsupported, "libcurl does not start");
  handle_->headers = curl_slist_append(nullptr, "Content-Type: application/json");
  // Without it a long body waits a second for a server that does not know the header.
  handle_->headers = curl_slist_append(handle_->headers, "Expect:");
  if (!token_.empty()) {
    handle_->headers =
        curl_slist_append(handle_->headers, ("Authorization: Bearer " + token_).c_str());
  }
}

HttpClient::HttpClient(HttpClient&& other) noexcept = default;
HttpClient::~HttpClient() = default;

nlohmann::json HttpClient::get(const std::string& path) { return request(path, nullptr); }

nlohmann::json HttpClient::post(const std::string& path, const nlohmann::json& body) {
  const std::string text = body.dump();
  return request(path, &text);
}

nlohmann::json HttpClient::request(const std::string& path, const std::string* body) {
  const std::string url = base_url_ + path;
  CURL* const curl = handle_->curl;
  std::string text;
  char reason[CURL_ERROR_SIZE] = {};
  curl_easy_reset(curl);
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, handle_->headers);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, reason);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(curl, CURLOPT_TIMEOUT, kAnswerSeconds);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_bytes);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &text);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, const_cast<std::atomic<bool>*>(stop_));
  if (body != nullptr) {
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body->c_str());
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body->size()));
  }
  const CURLcode code = curl_easy_perform(curl);
  if (code == CURLE_ABORTED_BY_CALLBACK) throw Error(ErrorCode::kInterrupted, "interrupted");
  if (code != CURLE_OK) {
    throw Error(ErrorCode::kIo,
                url + ": " + (reason[0] != '\0' ? reason : curl_easy_strerror(code)));
  }
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  nlohmann::json answer = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (status < 200 || status > 299) {
    throw Error(ErrorCode::kUnsupported, url + ": the server answers with status " +
                                             std::to_string(status) + ": " +
                                             in_quotes(complaint(answer, text)));
  }
  if (answer.is_discarded()) {
    throw Error(ErrorCode::kUnsupported,
                url + ": the server's answer is no JSON: " + in_quotes(text));
  }
  return answer;
}

}  // namespace oscar::eval

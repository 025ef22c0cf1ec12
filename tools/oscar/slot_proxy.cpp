#include "slot_proxy.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "http_message.h"
#include "support.h"

namespace oscar::tool {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxSlotBodyBytes = 64 << 10;
constexpr std::size_t kMaxNameBytes = 200;
const std::string kPartialPrefix = "oscar-part-";

const char* const kInvalid = "invalid_request_error";

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name.front() != '.' &&
         name.back() != '.' && name.rfind(kPartialPrefix, 0) != 0 &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
         });
}

// The request's file name; nothing where llama-server's own answer to the body says what is wrong.
std::optional<std::string> file_name_in(const std::string& body) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("filename") || !json["filename"].is_string())
    return std::nullopt;
  return json["filename"].get<std::string>();
}

const std::string kSlots = "/slots";

enum class Action { kNone, kSave, kRestore };

Action action_of(const HttpRequest& request) {
  const std::string path = request.path();
  const std::size_t slash = path.rfind('/');
  const bool of_slot = request.method == "POST" && slash != std::string::npos &&
                       slash >= kSlots.size() &&
                       path.compare(slash - kSlots.size(), kSlots.size(), kSlots) == 0;
  if (!of_slot) return Action::kNone;
  const std::string action = request.query("action");
  return action == "save" ? Action::kSave : action == "restore" ? Action::kRestore : Action::kNone;
}

// Beside the slots, behind the same --api-prefix.
std::string props_target(const HttpRequest& request) {
  const std::string path = request.path();
  return path.substr(0, path.rfind('/') - kSlots.size()) + "/props";
}

// The lines that llama-server asks for a key by.
std::string authorization_of(const HttpRequest& request) {
  std::string lines;
  for (const char* name : {"authorization", "x-api-key"}) {
    const std::string value = request.header(name);
    if (!value.empty()) lines += std::string(name) + ": " + value + "\r\n";
  }
  return lines;
}

// Reads up to the empty line; what has come of the body follows it in `bytes`. 0: no head.
std::size_t read_head(const Socket& client, std::string* bytes) {
  for (;;) {
    const std::size_t end = bytes->find("\r\n\r\n");
    if (end != std::string::npos) return end + 4;
    if (bytes->size() > kMaxHeadBytes) {
      client.send_all(error_response(431, kInvalid, "the request's head is longer than 64 KiB"));
      return 0;
    }
    if (!client.receive(bytes)) return 0;
  }
}

}  // namespace

SlotProxy::SlotProxy(SlotProxyOptions options) : options_(std::move(options)) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(options_.slot_folder)) {
    if (entry.path().filename().string().rfind(kPartialPrefix, 0) != 0) continue;
    note("removing " + entry.path().string() + ", which a save that was cut short has left");
    fs::remove(entry.path(), ignored);
  }
}

void SlotProxy::serve(const Socket& client) const {
  std::string bytes;
  const std::size_t head_bytes = read_head(client, &bytes);
  if (head_bytes == 0) return;
  const std::string_view head = std::string_view(bytes).substr(0, head_bytes);
  const std::optional<HttpRequest> request = parse_request(head);
  if (!request) {
    client.send_all(error_response(400, kInvalid, "the request is no HTTP/1.1"));
    return;
  }
  const Action action = action_of(*request);
  std::string body = bytes.substr(head_bytes);
  if (action != Action::kNone) {
    const auto length = request->content_length();
    if (!length || *length > kMaxSlotBodyBytes) {
      client.send_all(error_response(413, kInvalid,
                                     "a slot's request needs a Content-Length of at most " +
                                         std::to_string(kMaxSlotBodyBytes)));
      return;
    }
    while (body.size() < *length) {
      if (!client.receive(&body)) return;
    }
    if (const std::optional<std::string> name = file_name_in(body)) {
      const std::string auth = authorization_of(*request);
      const std::string answer = action == Action::kSave
                                     ? answer_save(request->target, auth, *name)
                                     : refuse_restore(props_target(*request), auth, *name);
      if (!answer.empty()) {
        client.send_all(answer);
        return;
      }
    }
  }
  const Socket server = connect_to(options_.upstream);
  if (!server) {
    client.send_all(error_response(503, "unavailable_error", "Loading model"));
    return;
  }
  if (!server.send_all(with_connection_close(head) + body)) return;
  relay(client, server);
}

std::string SlotProxy::ask(const std::string& method, const std::string& target,
                           const std::string& auth, const std::string& body) const {
  const Socket server = connect_to(options_.upstream);
  if (!server) return error_response(503, "unavailable_error", "Loading model");
  std::string answer;
  server.send_all(method + " " + target + " HTTP/1.1\r\nHost: localhost\r\n" + auth +
                  "Content-Type: application/json\r\nContent-Length: " +
                  std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + body);
  while (server.receive(&answer)) {
  }
  return answer;
}

std::string SlotProxy::answer_save(const std::string& target, const std::string& auth,
                                   const std::string& name) const {
  if (!is_plain_name(name)) {
    return error_response(400, kInvalid,
                          "slot file " + in_quotes(name) +
                              ": a name has letters, digits, '-', '_' and '.', begins and ends "
                              "with none of the dots, and at most " +
                              std::to_string(kMaxNameBytes) + " characters");
  }
  static std::atomic<int> num_saves{0};
  const std::string part =
      kPartialPrefix + std::to_string(::getpid()) + "-" + std::to_string(num_saves++);
  const fs::path folder = options_.slot_folder;
  const std::string answer = ask("POST", target, auth, Json{{"filename", part}}.dump());
  const std::optional<HttpResponse> response = parse_response(answer);
  std::error_code ignored;
  if (!response || response->status != 200) {
    fs::remove(folder / part, ignored);
    return response ? json_response(response->status, response->body)
                    : error_response(502, "server_error", "llama-server gave no answer");
  }
  try {
    seal_slot_file((folder / part).string(), (folder / name).string(), options_.identity);
  } catch (const Error& error) {
    fs::remove(folder / part, ignored);
    return error_response(500, "server_error", error.what());
  }
  Json body = Json::parse(response->body, nullptr, /*allow_exceptions=*/false);
  body["filename"] = name;
  return json_response(200, body.dump());
}

std::string SlotProxy::refuse_restore(const std::string& props_target, const std::string& auth,
                                      const std::string& name) const {
  // Who may not use the server learns nothing about its files.
  const std::optional<HttpResponse> props = parse_response(ask("GET", props_target, auth, ""));
  if (!props || props->status != 200) {
    return props ? json_response(props->status, props->body)
                 : error_response(502, "server_error", "llama-server gave no answer");
  }
  if (!is_plain_name(name)) {
    return error_response(400, kInvalid,
                          "slot file " + in_quotes(name) +
                              " is no name of a file "
                              "in the folder of --slot-save-path");
  }
  const Json json = Json::parse(props->body, nullptr, /*allow_exceptions=*/false);
  std::int64_t slot_tokens = 0;
  if (json.is_object() && json.contains("default_generation_settings")) {
    slot_tokens = json["default_generation_settings"].value("n_ctx", std::int64_t{0});
  }
  try {
    check_slot_file((fs::path(options_.slot_folder) / name).string(), name, options_.identity,
                    slot_tokens);
    return "";
  } catch (const Error& error) {
    return error_response(error.code() == ErrorCode::kNotFound ? 404 : 400, kInvalid, error.what());
  }
}

}  // namespace oscar::tool

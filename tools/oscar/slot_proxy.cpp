#include "slot_proxy.h"

#include <algorithm>
#include <charconv>
#include <chrono>
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
constexpr std::chrono::seconds kRequestTime(
    30);  // for a head, and for the body of a slot's request

const char* const kInvalid = "invalid_request_error";
const char* const kServerError = "server_error";

using Clock = std::chrono::steady_clock;

bool is_plain(unsigned char c) { return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_'; }

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name.front() != '.' &&
         name.back() != '.' && !is_partial_name(name) &&
         std::all_of(name.begin(), name.end(), is_plain);
}

bool is_slots_path(const HttpRequest& request) {
  // llama-server decodes %uXXXX too, which none of its own paths needs.
  const std::string raw = request.target.substr(0, request.target.find_first_of("?#"));
  return request.method == "POST" && (request.path().find("/slots") != std::string::npos ||
                                      raw.find("%u") != std::string::npos);
}

}  // namespace

// PREFIX/slots/ID?action=ACTION, where PREFIX is that of --api-prefix, and no other spelling of it.
struct SlotRequest {
  std::string prefix, action;
  std::int64_t slot = 0;

  std::string target() const {
    return prefix + "/slots/" + std::to_string(slot) + "?action=" + action;
  }
};

namespace {

std::optional<SlotRequest> parse_slot_request(const std::string& target) {
  const std::string slots = "/slots/", action = "?action=";
  const std::size_t start = target.rfind(slots), query = target.find(action);
  if (start == std::string::npos || query == std::string::npos || query < start) {
    return std::nullopt;
  }
  SlotRequest request{target.substr(0, start), target.substr(query + action.size())};
  const std::string_view id =
      std::string_view(target).substr(start + slots.size(), query - start - slots.size());
  const auto [end, status] = std::from_chars(id.data(), id.data() + id.size(), request.slot);
  const bool is_number = status == std::errc() && end == id.data() + id.size();
  const bool is_plain_prefix =
      (request.prefix + '/').find("//") == std::string::npos &&
      std::all_of(request.prefix.begin(), request.prefix.end(),
                  [](char c) { return c == '/' || is_plain(static_cast<unsigned char>(c)); });
  if (!is_number || !is_plain_prefix ||
      (request.action != "save" && request.action != "restore" && request.action != "erase")) {
    return std::nullopt;
  }
  return request;
}

// The name in a slot's request, or the answer that says what is wrong with the body.
struct NameOrAnswer {
  std::string name, answer;
};

NameOrAnswer file_name_in(const std::string& body) {
  const auto wrong = [](const std::string& what) {
    return NameOrAnswer{"", error_response(400, kInvalid,
                                           what + "; a slot's request has a body of the form "
                                                  "{\"filename\": \"NAME\"}")};
  };
  if (body.empty()) return wrong("the body is missing");
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return wrong("the body is no JSON");
  if (!json.is_object()) return wrong("the body is no JSON object");
  if (!json.contains("filename")) return wrong("the body has no \"filename\"");
  if (!json["filename"].is_string()) return wrong("\"filename\" is no text");
  const std::string name = json["filename"].get<std::string>();
  if (is_plain_name(name)) return {name, ""};
  return {"", error_response(400, kInvalid,
                             "slot file " + in_quotes(name) +
                                 ": a name has letters, digits, '-', '_' and '.', begins and ends "
                                 "with none of the dots, and at most " +
                                 std::to_string(kMaxNameBytes) + " characters")};
}

// What is passed on of an answer of llama-server's.
std::string passed_on(const std::optional<HttpResponse>& response) {
  return response ? json_response(response->status, response->body)
                  : error_response(502, kServerError, "llama-server gave no answer");
}

void send_answer(const Socket& client, const std::string& answer) {
  if (client.send_all(answer)) client.finish();
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

// More bytes of a request by `end_time`. False when none come; where the time is up, the client is
// told what is `late`.
bool receive_more(const Socket& client, Clock::time_point end_time, const std::string& late,
                  std::string* bytes) {
  bool timed_out = false;
  if (client.receive_until(end_time, bytes, &timed_out)) return true;
  if (timed_out) {
    send_answer(client,
                error_response(408, kInvalid,
                               late + " within " + std::to_string(kRequestTime.count()) + " s"));
  }
  return false;
}

// Reads up to the empty line; what has come of the body follows it in `bytes`. 0: no head.
std::size_t read_head(const Socket& client, std::string* bytes) {
  const Clock::time_point end_time = Clock::now() + kRequestTime;
  for (;;) {
    const std::size_t end = bytes->find("\r\n\r\n");
    if (has_bare_line_feed(std::string_view(*bytes).substr(0, end))) {
      send_answer(client, error_response(400, kInvalid, "a line of the head ends in LF, not CRLF"));
      return 0;
    }
    if (end != std::string::npos) return end + 4;
    if (bytes->size() > kMaxHeadBytes) {
      send_answer(client,
                  error_response(431, kInvalid, "the request's head is longer than 64 KiB"));
      return 0;
    }
    if (!receive_more(client, end_time, "no whole head came", bytes)) return 0;
  }
}

// The rest of a body of `length` bytes; false when it does not come.
bool read_body(const Socket& client, std::uint64_t length, std::string* body) {
  const Clock::time_point end_time = Clock::now() + kRequestTime;
  while (body->size() < length) {
    if (!receive_more(client, end_time, "the body did not come", body)) return false;
  }
  body->resize(length);
  return true;
}

}  // namespace

SlotProxy::SlotProxy(SlotProxyOptions options) : options_(std::move(options)) {
  for (const std::string& path : remove_abandoned_saves(options_.slot_folder)) {
    note("removed " + path + ", which a save that was cut short had left");
  }
}

void SlotProxy::serve(const Socket& client) const {
  std::string bytes;
  const std::size_t head_bytes = read_head(client, &bytes);
  if (head_bytes == 0) return;
  const std::string_view head = std::string_view(bytes).substr(0, head_bytes);
  const std::optional<HttpRequest> request = parse_request(head);
  if (!request) {
    send_answer(client, error_response(400, kInvalid, "the request is no HTTP/1.1"));
    return;
  }
  std::string body = bytes.substr(head_bytes);
  if (is_slots_path(*request)) {
    const std::optional<SlotRequest> slot = parse_slot_request(request->target);
    if (!slot) {
      send_answer(client, error_response(400, kInvalid,
                                         in_quotes(request->target) +
                                             ": requests to slots have the form "
                                             "/slots/ID?action=save, restore or erase"));
      return;
    }
    if (slot->slot < 0 || slot->slot >= options_.num_slots) {
      send_answer(client, error_response(400, kInvalid,
                                         "slot " + std::to_string(slot->slot) +
                                             " does not exist; the last one is " +
                                             std::to_string(options_.num_slots - 1)));
      return;
    }
    if (slot->action != "erase") {
      const auto length = request->content_length();
      if (!length || *length > kMaxSlotBodyBytes) {
        send_answer(client, error_response(413, kInvalid,
                                           "a slot's request needs a Content-Length of at most " +
                                               std::to_string(kMaxSlotBodyBytes)));
        return;
      }
      if (read_body(client, *length, &body)) {
        send_answer(client, answer_slot(*slot, authorization_of(*request), body));
      }
      return;
    }
  }
  const Socket server = connect_to(options_.upstream);
  if (!server) {
    send_answer(client, error_response(503, "unavailable_error", "Loading model"));
    return;
  }
  if (!server.send_all(with_connection_close(head) + body)) return;
  relay(client, server);
}

std::string SlotProxy::answer_slot(const SlotRequest& slot, const std::string& auth,
                                   const std::string& body) const {
  try {
    const NameOrAnswer name = file_name_in(body);
    if (!name.answer.empty()) return name.answer;
    return slot.action == "save" ? answer_save(slot, auth, name.name)
                                 : answer_restore(slot, auth, name.name);
  } catch (const std::exception& error) {
    return error_response(500, kServerError, error.what());
  }
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

std::string SlotProxy::answer_save(const SlotRequest& slot, const std::string& auth,
                                   const std::string& name) const {
  const fs::path target = fs::path(options_.slot_folder) / name;
  std::error_code ignored;
  const fs::file_type type = fs::symlink_status(target, ignored).type();
  if (type != fs::file_type::not_found && type != fs::file_type::regular &&
      type != fs::file_type::symlink) {
    return error_response(400, kInvalid, "slot file " + in_quotes(name) + " is not a regular file");
  }
  const PartialSlotFile part(options_.slot_folder);
  const std::optional<HttpResponse> response =
      parse_response(ask("POST", slot.target(), auth, Json{{"filename", part.name()}}.dump()));
  if (response && response->status == 500) {
    // llama-server does not say which file, and of a full disk not why.
    std::error_code problem;
    const fs::space_info space = fs::space(options_.slot_folder, problem);
    const std::string folder = in_quotes(options_.slot_folder);
    const Json answer = Json::parse(response->body, nullptr, /*allow_exceptions=*/false);
    const Json::json_pointer place("/error/message");
    const bool is_text = answer.contains(place) && answer[place].is_string();
    return error_response(
        500, kServerError,
        "slot " + std::to_string(slot.slot) + " could not be saved, " + in_quotes(name) +
            " was not written; " +
            (problem ? folder + ": " + problem.message()
                     : folder + " has room for " + std::to_string(space.available) + " bytes") +
            (is_text ? " (llama-server: " + in_quotes(answer[place].get<std::string>()) + ")"
                     : ""));
  }
  if (!response || response->status != 200) return passed_on(response);
  Json body = Json::parse(response->body, nullptr, /*allow_exceptions=*/false);
  if (!body.is_object())
    return error_response(502, kServerError, "llama-server's answer is no JSON");
  if (body.value("n_saved", std::int64_t{0}) == 0) {
    return error_response(
        400, kInvalid,
        "slot " + std::to_string(slot.slot) + " is empty; " + in_quotes(name) + " was not written");
  }
  const std::uint64_t written = fs::file_size(part.path());
  if (body.value("n_written", written) != written) {
    return error_response(500, kServerError,
                          "of slot file " + in_quotes(name) + " only " + std::to_string(written) +
                              " bytes could be written");
  }
  seal_slot_file(part.path(), target.string(), options_.identity);
  body["filename"] = name;
  return json_response(200, body.dump());
}

std::string SlotProxy::answer_restore(const SlotRequest& slot, const std::string& auth,
                                      const std::string& name) const {
  // Who may not use the server learns nothing about its files.
  const std::optional<HttpResponse> props =
      parse_response(ask("GET", slot.prefix + "/props", auth, ""));
  if (!props || props->status != 200) return passed_on(props);
  const Json json = Json::parse(props->body, nullptr, /*allow_exceptions=*/false);
  std::int64_t slot_tokens = 0;
  if (json.is_object() && json.contains("default_generation_settings")) {
    slot_tokens = json["default_generation_settings"].value("n_ctx", std::int64_t{0});
  }
  try {
    check_slot_file((fs::path(options_.slot_folder) / name).string(), name, options_.identity,
                    slot_tokens);
  } catch (const Error& error) {
    return error_response(error.code() == ErrorCode::kNotFound ? 404 : 400, kInvalid, error.what());
  }
  return passed_on(
      parse_response(ask("POST", slot.target(), auth, Json{{"filename", name}}.dump())));
}

}  // namespace oscar::tool

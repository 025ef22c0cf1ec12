#include "eval/server_answerer.h"

#include <cmath>
#include <utility>

#include "base/error.h"
#include "eval/text.h"

namespace oscar::eval {
namespace {

constexpr const char* kChat = "/chat/completions";
// Texts vary in their bytes a token; a document must fit all the same.
constexpr double kMargin = 0.96;
constexpr std::size_t kSampleBytes = 4096;

}  // namespace

ServerAnswerer::ServerAnswerer(HttpClient client, const std::string& model, std::string_view sample)
    : client_(std::move(client)), model_(model) {
  if (model_.empty()) {
    const nlohmann::json models = client_.get("/models");
    try {
      model_ = models.at("data").at(0).at("id").get<std::string>();
    } catch (const nlohmann::json::exception&) {
      throw Error(ErrorCode::kUnsupported,
                  client_.base_url() + "/models: lists no model; name one with --server-model");
    }
  }
  std::string part(sample.substr(0, kSampleBytes));
  part.resize(part.size() - incomplete_utf8_tail(part));
  try {
    const auto prompt_tokens = [&](const std::string& text) {
      return chat(text, 1).at("usage").at("prompt_tokens").get<double>();
    };
    // The difference leaves the chat template out; "." stands for an empty text, which some refuse.
    const double tokens = prompt_tokens(part) - prompt_tokens(".");
    if (tokens > 0) bytes_per_token_ = static_cast<double>(part.size()) / tokens;
  } catch (const nlohmann::json::exception&) {
    bytes_per_token_ = 0;
  }
  if (!(bytes_per_token_ > 0)) {
    throw Error(ErrorCode::kUnsupported,
                client_.base_url() + kChat +
                    ": the answer has no usage.prompt_tokens, so documents cannot be measured");
  }
}

std::int64_t ServerAnswerer::count_tokens(std::string_view text) {
  return std::llround(std::ceil(static_cast<double>(text.size()) / (kMargin * bytes_per_token_)));
}

nlohmann::json ServerAnswerer::chat(const std::string& text, std::int64_t max_new_tokens) {
  const nlohmann::json message = {{"role", "user"}, {"content", text}};
  return client_.post(kChat, {{"model", model_},
                              {"messages", nlohmann::json::array({message})},
                              {"temperature", 0},
                              {"seed", 1},
                              {"max_tokens", max_new_tokens}});
}

std::string ServerAnswerer::answer(std::string_view question, std::int64_t max_new_tokens) {
  const nlohmann::json answer = chat(document_ + "\n\n" + std::string(question), max_new_tokens);
  try {
    const nlohmann::json& content = answer.at("choices").at(0).at("message").at("content");
    return content.is_null() ? "" : content.get<std::string>();
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorCode::kUnsupported,
                client_.base_url() + kChat + ": the answer has no choices[0].message.content");
  }
}

}  // namespace oscar::eval

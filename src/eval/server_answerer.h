// Answers by an OpenAI-compatible server: llama-server, vLLM, SGLang and others.
#pragma once

#include "eval/answerer.h"
#include "eval/http_client.h"

namespace oscar::eval {

class ServerAnswerer : public Answerer {
 public:
  // model "": the first that the server lists. Asks the server for that, and for how many bytes of
  // `sample` it takes for a token, which is what documents are measured by. Throws as HttpClient
  // does, and Error(kUnsupported) where the server does not say what it counts.
  ServerAnswerer(HttpClient client, const std::string& model, std::string_view sample);

  void read(std::string_view document) override { document_ = document; }
  // The document goes along each time; servers keep the prefix that questions share.
  std::string answer(std::string_view question, std::int64_t max_new_tokens) override;
  AnswererUse use() override { return {client_.base_url(), model_, 0, 0}; }
  std::int64_t count_tokens(std::string_view text) override;
  const std::string& model() const { return model_; }

 private:
  nlohmann::json chat(const std::string& text, std::int64_t max_new_tokens);

  HttpClient client_;
  std::string model_, document_;
  double bytes_per_token_ = 0;
};

}  // namespace oscar::eval

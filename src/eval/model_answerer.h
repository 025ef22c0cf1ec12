// Answers by a model in this process: the document is decoded once, each question on a copy of it.
#pragma once

#include <memory>
#include <vector>

#include "eval/answerer.h"
#include "eval/workbench.h"

namespace oscar::eval {

class ModelAnswerer : public Answerer {
 public:
  // Room for documents of context_tokens − kReservedTokens. The question follows the document,
  // both in the model's chat template where it has one.
  ModelAnswerer(Workbench* workbench, KvChoice kv, std::int64_t context_tokens);

  void read(std::string_view document) override;
  std::string answer(std::string_view question, std::int64_t max_new_tokens) override;
  // Reads the document once more, alone: copies of it would count as well.
  AnswererUse use() override;
  std::int64_t count_tokens(std::string_view text) override;

 private:
  // The prompt's parts before and after the document; `question` is in the second.
  std::pair<std::string, std::string> around_document(std::string_view question);
  // Decodes the document into the first stream.
  void prefill(Context* context) const;

  Workbench& workbench_;
  KvChoice kv_;
  std::int64_t context_tokens_;
  std::unique_ptr<Context> context_;
  std::vector<llama_token> document_;
};

}  // namespace oscar::eval

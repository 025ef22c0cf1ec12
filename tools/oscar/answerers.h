// Who is asked: the model under each --kv, or the server of --url.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "eval/answerer.h"
#include "support.h"

namespace oscar::tool {

struct AnswererOptions {
  CommonOptions common;
  std::vector<std::string> kvs;
  std::string url, server_model;
};

// --model, --kv, --url and --server-model; one of --model and --url is needed.
void add_answerer_options(CLI::App* app, AnswererOptions* options);

// Calls `ask` with one answerer after the other, each made when the one before is gone.
// context_tokens: of the longest question. `sample`: of the text that documents are made of.
// Returns the head of a result document.
Json for_each_answerer(const AnswererOptions& options, std::int64_t context_tokens,
                       std::string_view sample,
                       const std::function<void(eval::Answerer*, std::size_t num_answerers)>& ask);

}  // namespace oscar::tool

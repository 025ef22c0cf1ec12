// What the commands that evaluate a text have in common: their options, the run, the results.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "eval/evaluate.h"
#include "support.h"

namespace oscar::tool {

struct EvalCommand {
  CommonOptions common;
  std::string text;
  std::int64_t ctx = 4096;
  std::int64_t windows = 1;
  std::uint64_t seed = 1;
  bool fresh = false;
  std::vector<std::string> kvs;
};

// All but --kv.
void add_eval_options(CLI::App* app, EvalCommand* command);

// The caches to evaluate, and what is added to the JSON document.
struct EvalPlan {
  std::vector<eval::KvChoice> kvs;
  Json extra = Json::object();
};

// Opens the model, lets `plan` choose the caches, evaluates, prints, writes the JSON. Windows that
// are done are kept in JSON_FILE.state until then; a run that finds them says so and goes on there.
void run_evaluation(const EvalCommand& command, bool with_kl,
                    const std::function<EvalPlan(eval::Workbench*)>& plan);

// json_header, with the command that is running.
Json result_header(const CommonOptions& options, const eval::Workbench& workbench);

}  // namespace oscar::tool

#include "eval_report.h"

namespace oscar::tool {

void print_eval_rows(const std::vector<eval::EvalRow>& rows) {
  const bool with_kl = !rows.empty() && rows.front().kl.has_value();
  std::vector<std::vector<std::string>> table;
  table.push_back({"KV cache", "bits", "KV memory", "ppl"});
  if (with_kl) {
    for (const char* name : {"KL mean", "median", "trimmed", "p99", "same top"}) {
      table.back().push_back(name);
    }
  }
  for (const eval::EvalRow& row : rows) {
    std::vector<std::string> cells = {row.kv, format("%.3f", row.use.bits),
                                      human_bytes(row.use.kv_bytes),
                                      format("%.4f", row.perplexity)};
    if (row.kl) {
      for (const double value : {row.kl->mean, row.kl->median, row.kl->trimmed10, row.kl->p99}) {
        cells.push_back(format("%.5f", value));
      }
      cells.push_back(format("%.2f %%", 100 * row.top1));
    }
    table.push_back(cells);
  }
  print_table(table);
  if (rows.empty()) return;
  std::printf(
      "scored: %lld positions, the last half of %lld tokens%s\n",
      static_cast<long long>(rows.front().num_scored),
      static_cast<long long>(rows.front().context_tokens),
      with_kl
          ? "; KL in nats a token against f16; trimmed: without the lowest and the highest tenth"
          : "");
}

Json eval_row_json(const eval::EvalRow& row) {
  Json json;
  json["kv"] = row.kv;
  json["method"] = row.use.method;
  json["bits"] = row.use.bits;
  json["kv_bytes"] = row.use.kv_bytes;
  json["ctx"] = row.context_tokens;
  json["tokens"] = row.num_scored;
  json["ppl"] = row.perplexity;
  if (row.kl) {
    json["kl"] = {{"mean", row.kl->mean},
                  {"median", row.kl->median},
                  {"trimmed10", row.kl->trimmed10},
                  {"p99", row.kl->p99}};
    json["top1"] = row.top1;
  }
  json["decode_seconds"] = row.decode_seconds;
  return json;
}

}  // namespace oscar::tool

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

void print_position_rows(const std::vector<eval::EvalRow>& rows) {
  if (rows.empty() || rows.front().by_position.empty()) return;
  std::vector<std::vector<std::string>> table = {{"KL mean, by position"}, {"  positions scored"}};
  for (const eval::PositionRow& range : rows.front().by_position) {
    table[0].push_back("< " + std::to_string(range.range.to));
    table[1].push_back(std::to_string(range.num_scored));
  }
  for (const eval::EvalRow& row : rows) {
    if (row.kv == eval::kReferenceLabel) continue;
    table.push_back({row.kv});
    for (const eval::PositionRow& range : row.by_position) {
      table.back().push_back(format("%.5f", range.kl_mean));
    }
  }
  std::printf("\n");
  print_table(table);
}

void print_intervals(const std::vector<eval::EvalRow>& rows, std::uint64_t seed) {
  if (rows.empty()) return;
  std::vector<std::vector<std::string>> table = {{"95 % intervals", "ppl"}};
  const bool with_kl = rows.front().kl.has_value();
  if (with_kl) table[0].insert(table[0].end(), {"KL mean", "same top"});
  const auto cell = [](const char* pattern, const eval::Interval& interval, double factor) {
    return format(pattern, factor * interval.low) + " … " + format(pattern, factor * interval.high);
  };
  for (const eval::EvalRow& row : rows) {
    table.push_back({row.kv, cell("%.3f", row.perplexity_interval, 1)});
    if (!with_kl) continue;
    table.back().push_back(cell("%.5f", row.kl_interval, 1));
    table.back().push_back(cell("%.2f %%", row.top1_interval, 100));
  }
  std::printf("\n");
  print_table(table);
  std::printf("intervals: bootstrap over blocks of %lld positions, seed %llu\n",
              static_cast<long long>(eval::kTokenBlock), static_cast<unsigned long long>(seed));
}

Json interval_json(const eval::Interval& interval) { return {interval.low, interval.high}; }

Json eval_row_json(const eval::EvalRow& row) {
  Json json;
  json["kv"] = row.kv;
  json["method"] = row.use.method;
  json["bits"] = row.use.bits;
  json["code_bits"] = row.use.code_bits;
  json["kv_bytes"] = row.use.kv_bytes;
  json["ctx"] = row.context_tokens;
  json["tokens"] = row.num_scored;
  json["ppl"] = row.perplexity;
  json["ppl_ci95"] = interval_json(row.perplexity_interval);
  if (row.kl) {
    json["kl"] = {{"mean", row.kl->mean},
                  {"median", row.kl->median},
                  {"trimmed10", row.kl->trimmed10},
                  {"p99", row.kl->p99}};
    json["kl_ci95"] = interval_json(row.kl_interval);
    json["top1"] = row.top1;
    json["top1_ci95"] = interval_json(row.top1_interval);
  }
  for (const eval::PositionRow& range : row.by_position) {
    json["kl_by_position"].push_back({{"from", range.range.from},
                                      {"to", range.range.to},
                                      {"tokens", range.num_scored},
                                      {"mean", range.kl_mean},
                                      {"ci95", interval_json(range.kl_interval)}});
  }
  json["decode_seconds"] = row.decode_seconds;
  return json;
}

}  // namespace oscar::tool

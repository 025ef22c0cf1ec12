// How rows of an evaluation look: as a table and as JSON.
#pragma once

#include <vector>

#include "eval/evaluate.h"
#include "support.h"

namespace oscar::tool {

void print_eval_rows(const std::vector<eval::EvalRow>& rows);
// The mean KL of each range of positions; nothing where there is none.
void print_position_rows(const std::vector<eval::EvalRow>& rows);
void print_intervals(const std::vector<eval::EvalRow>& rows, std::uint64_t seed);
Json interval_json(const eval::Interval& interval);  // [low, high]
Json eval_row_json(const eval::EvalRow& row);

}  // namespace oscar::tool

// How rows of an evaluation look: as a table and as JSON.
#pragma once

#include <vector>

#include "eval/evaluate.h"
#include "support.h"

namespace oscar::tool {

void print_eval_rows(const std::vector<eval::EvalRow>& rows);
Json eval_row_json(const eval::EvalRow& row);

}  // namespace oscar::tool

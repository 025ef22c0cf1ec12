// The commands under `oscar eval`, as in commands.h.
#pragma once

namespace CLI {
class App;
}

namespace oscar::tool {

void add_eval_niah(CLI::App* eval);
void add_eval_qa(CLI::App* eval);
void add_eval_sweep(CLI::App* eval);
void add_eval_layers(CLI::App* eval);
void add_eval_generate(CLI::App* eval);

}  // namespace oscar::tool

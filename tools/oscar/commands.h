// One function a command: adds it to the program; what it parsed is run by the app's callback.
#pragma once

namespace CLI {
class App;
}

namespace oscar::tool {

void add_calibrate(CLI::App* program);
void add_inspect(CLI::App* program);
void add_run(CLI::App* program);
void add_eval(CLI::App* program);
void add_compare(CLI::App* program);
void add_plan(CLI::App* program);
void add_doctor(CLI::App* program);
void add_serve(CLI::App* program);
void add_bench(CLI::App* program);
void add_bench_cuda(CLI::App* bench);  // a command of bench
void add_report(CLI::App* program);

}  // namespace oscar::tool

// oscar inspect
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "artefact_report.h"
#include "base/cpu_features.h"
#include "commands.h"
#include "kernels/kernels.h"
#include "methods/definition.h"
#include "support.h"

namespace oscar::tool {
namespace {

struct InspectCommand {
  CommonOptions common;
  std::string file;
  bool kernels = false;
};

Json print_kernels() {
  const kernels::KernelSet& selected = kernels::selected_kernel_set();
  Json list = Json::array();
  std::vector<std::vector<std::string>> table = {{"kernels", "supported", "selected", "needs"}};
  for (const kernels::KernelSet* set : kernels::all_kernel_sets()) {
    const bool chosen = set == &selected;
    table.push_back({set->name, set->supported() ? "yes" : "no", chosen ? "yes" : "", set->needs});
    list.push_back({{"name", set->name},
                    {"supported", set->supported()},
                    {"selected", chosen},
                    {"needs", set->needs}});
  }
  print_table(table);
  std::printf("processor: %s\n", cpu_name().c_str());
  return list;
}

void run_inspect(const InspectCommand& command) {
  Json document;
  document["version"] = OSCAR_VERSION;
  if (!command.file.empty()) {
    const Artefact artefact = load_artefact(command.file);
    print_artefact(artefact);
    std::fflush(stdout);
    methods::check(artefact.method, artefact);  // what `--kv FILE` would refuse
    document.update(artefact_json(artefact));
  }
  if (command.kernels) document["kernels"] = print_kernels();
  if (!command.common.json.empty()) write_json(command.common.json, document);
}

}  // namespace

void add_inspect(CLI::App* program) {
  auto command = std::make_shared<InspectCommand>();
  CLI::App* app =
      program->add_subcommand("inspect",
                              "what an artefact holds, or which kernels this machine runs\n"
                              "  oscar inspect model.oscar.safetensors\n"
                              "  oscar inspect --kernels");
  CLI::Option* file = app->add_option("FILE", command->file, "an artefact of `oscar calibrate`");
  CLI::Option* kernels = app->add_flag("--kernels", command->kernels,
                                       "the kernel sets, best first; OSCAR_CPU=NAME forces one");
  add_json_option(app, &command->common);
  app->callback([command, file, kernels] {
    if (file->count() + kernels->count() == 0) throw CLI::RequiredError("FILE or --kernels");
    run_inspect(*command);
  });
}

}  // namespace oscar::tool

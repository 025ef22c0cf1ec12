// oscar bench cuda: starts the benchmark that is built with the CUDA kernels (bench/cuda).
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "commands.h"
#include "cuda/build.h"
#ifdef OSCAR_CUDA_KERNELS
#include "cuda/gpu.h"
#endif
#include "output_file.h"

namespace oscar::tool {
namespace {

struct BenchCudaCommand {
  bool encode = false, quick = false;
  std::string json, commit;
};

void run_bench_cuda([[maybe_unused]] const BenchCudaCommand& command) {
#ifdef OSCAR_CUDA_KERNELS
  cuda::usable_gpu(0);
  std::vector<std::string> arguments = {command.encode ? OSCAR_CUDA_ENCODE_BENCH
                                                       : OSCAR_CUDA_DECODE_BENCH};
  if (command.quick) arguments.emplace_back("--quick");
  if (!command.json.empty()) {
    arguments.emplace_back("--json");
    arguments.push_back(command.json);
  }
  if (!command.commit.empty()) {
    arguments.emplace_back("--commit");
    arguments.push_back(command.commit);
  }
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  std::fflush(stdout);
  ::execv(pointers[0], pointers.data());
  throw Error(ErrorCode::kIo, "cannot start " + arguments[0] + ": " + std::strerror(errno));
#else
  throw Error(ErrorCode::kUnsupported, std::string("this build has no CUDA kernels (") +
                                           cuda::kBuildText.choice +
                                           "); scripts/gpu_check builds and measures them");
#endif
}

}  // namespace

void add_bench_cuda(CLI::App* bench) {
  auto command = std::make_shared<BenchCudaCommand>();
  CLI::App* app = bench->add_subcommand(
      "cuda",
      "attention over codes on a GPU at many shapes, and how fast memory can be read\n"
      "  oscar bench cuda --quick --json c.json\n"
      "scripts/gpu_check adds FlashInfer and FlashAttention 3 in the same run");
  app->add_flag("--encode", command->encode, "encoding of keys and values instead");
  app->add_flag("--quick", command->quick, "the shapes of the README's table only");
  app->add_option("--json", command->json, "file for the results")
      ->check(output_check(OutputKind::kJson));
  app->add_option("--commit", command->commit, "commit that the results name");
  app->callback([command] { run_bench_cuda(*command); });
}

}  // namespace oscar::tool

// The program `oscar`: parse, call the library, print.
// Exit status: 0 done, 1 an error (one line on stderr), 2 wrong usage, 130 interrupted.
#include <fcntl.h>
#include <ggml.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "base/error.h"
#include "commands.h"
#include "cuda/build.h"
#include "serve_arguments.h"
#include "support.h"

namespace {

constexpr int kErrorExit = 1, kUsageExit = 2, kInterruptedExit = 130;

int fail(int status, const std::string& message) {
  std::string line = message;
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  std::fprintf(stderr, "error: %s\n", line.c_str());
  return status;
}

// The last resort where ggml meets a state that it cannot return from. Its message begins with the
// path of a source file on the machine that built it.
void on_ggml_abort(const char* message) {
  const std::string text = message;
  const std::size_t folder = text.substr(0, text.find(':')).rfind('/');
  const std::string& model = oscar::tool::current_model();
  ::_exit(fail(kErrorExit, (model.empty() ? "" : model + ": ") + "llama.cpp cannot work with it: " +
                               text.substr(folder == std::string::npos ? 0 : folder + 1)));
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// CLI11 would only say that a command or an option is missing, not that one is there which it does
// not know.
std::string usage_message(const CLI::App& program, const CLI::ParseError& usage) {
  const CLI::App* command = &program;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  const std::vector<std::string> unknown = program.remaining(/*recurse=*/true);
  if (unknown.empty() || usage.get_exit_code() != static_cast<int>(CLI::ExitCodes::RequiredError)) {
    return std::string(usage.what()) + " (see --help)";
  }
  std::string names;
  for (const CLI::App* each : commands_of(*command)) {
    names += (names.empty() ? "" : ", ") + each->get_name();
  }
  if (!names.empty() && unknown.front()[0] != '-') {
    return "unknown command '" + unknown.front() + "'; commands: " + names;
  }
  return "unknown argument '" + unknown.front() + "' (see --help)";
}

// What no option means: an empty value, where a variable of the shell was not set; a whole number
// with a leading zero, which the parser would take for octal or hexadecimal.
void refuse_odd_values(CLI::App* app) {
  for (CLI::Option* option : app->get_options()) {
    if (option->get_items_expected_max() == 0) continue;
    const bool is_whole = option->get_type_name().find("INT") != std::string::npos;
    option->check([is_whole](const std::string& value) -> std::string {
      if (value.empty()) return "is empty; give a value or leave the option out";
      const std::size_t first = value.find_first_not_of("+-");
      const bool has_zero = first < value.size() - 1 && value[first] == '0';
      return is_whole && has_zero ? value + " is no decimal number; leave the first 0 out" : "";
    });
  }
  for (CLI::App* command : app->get_subcommands([](CLI::App*) { return true; })) {
    refuse_odd_values(command);
  }
}

// A standard stream that came closed stays unusable: otherwise the next file opened would take its
// number, and what is printed would go there.
void reserve_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest free number. Open the wrong way, so that each use fails.
    if (::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
  }
}

// Everything printed has arrived. A flush that failed dropped what it held, so the last one may
// well succeed; the streams remember it.
bool flush_standard_output() {
  std::cout.flush();
  const bool flushed = std::fflush(stdout) == 0;
  return flushed && std::ferror(stdout) == 0 && std::cout.good();
}

int run(CLI::App* program, int argc, char** argv) {
  try {
    std::vector<std::string> arguments =
        oscar::tool::with_server_options_last({argv + 1, argv + argc});
    std::reverse(arguments.begin(), arguments.end());  // as the parser wants them
    program->parse(std::move(arguments));
  } catch (const CLI::ParseError& usage) {
    // --help and --version come this way too.
    if (usage.get_exit_code() == 0) return program->exit(usage);
    return fail(kUsageExit, usage_message(*program, usage));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  reserve_standard_streams();
  oscar::tool::catch_signals();
  ggml_set_abort_callback(on_ggml_abort);
  CLI::App program(
      "oscar: KV caches of 2 to 4 bits a value for llama.cpp models.\n"
      "  oscar calibrate -m model.gguf -f text.txt -o model.oscar.safetensors\n"
      "  oscar run -m model.gguf -p 'Why is the sky blue?' --kv model.oscar.safetensors\n"
      "  oscar eval kl -m model.gguf -f other.txt --ctx 4096 --kv quarot --kv "
      "model.oscar.safetensors");
  program.name("oscar");
  program.require_subcommand(1);
  program.set_version_flag("--version", [] {
    return "oscar " OSCAR_VERSION ", llama.cpp " + oscar::eval::llama_version_text() + "\n" +
           oscar::cuda::kBuildText.choice;
  });
  oscar::tool::add_calibrate(&program);
  oscar::tool::add_inspect(&program);
  oscar::tool::add_run(&program);
  oscar::tool::add_eval(&program);
  oscar::tool::add_compare(&program);
  oscar::tool::add_plan(&program);
  oscar::tool::add_doctor(&program);
  oscar::tool::add_serve(&program);
  oscar::tool::add_bench(&program);
  oscar::tool::add_report(&program);
  refuse_odd_values(&program);
  int status = kErrorExit;
  try {
    status = run(&program, argc, argv);
  } catch (const oscar::Error& error) {
    status = error.code() == oscar::ErrorCode::kInterrupted
                 ? fail(kInterruptedExit, std::string(error.what()) == "interrupted"
                                              ? "interrupted; no output file was written"
                                              : error.what())
                 : fail(kErrorExit, error.what());
  } catch (const std::exception& error) {
    status = fail(kErrorExit, error.what());
  }
  if (!flush_standard_output() && status == 0) {
    status = fail(kErrorExit, "cannot write to standard output");
  }
  return status;
}

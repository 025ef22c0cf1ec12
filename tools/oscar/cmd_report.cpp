// oscar report
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "commands.h"
#include "kv_options.h"
#include "support.h"

namespace oscar::tool {
namespace {

namespace fs = std::filesystem;

struct ReportCommand {
  std::string folder, output;
  bool no_pdf = false;
};

// $OSCAR_PYTHON, the environment of scripts/setup, or the system's.
std::string python() {
  const char* forced = std::getenv("OSCAR_PYTHON");
  if (forced != nullptr && *forced != '\0') return forced;
  const std::string own = cache_folder() + "/python/bin/python";
  return fs::exists(own) ? own : "python3";
}

std::string report_program() {
  const std::string here = eval::executable_folder();
  for (const char* path : {"../share/oscar-kv/oscar_report", "../report/oscar_report"}) {
    if (fs::exists(here + path + "/__main__.py")) return here + path;
  }
  throw Error(ErrorCode::kNotFound,
              "the report's program lies not in " + here + "../share/oscar-kv/oscar_report");
}

// Becomes the Python program, which prints and returns what this one would.
void run_report(const ReportCommand& command) {
  const std::string interpreter = python(), program = report_program();
  const std::string page =
      command.output.empty() ? (fs::path(command.folder) / "report.html").string() : command.output;
  std::vector<const char*> arguments = {interpreter.c_str(), "-B", program.c_str()};
  if (command.no_pdf) arguments.push_back("--no-pdf");
  // Behind "--" a name that begins with a dash is a name.
  arguments.insert(arguments.end(), {"--", command.folder.c_str(), page.c_str(), nullptr});
  // Held back until the program can answer in one line; it lets them through.
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGINT);
  ::sigaddset(&signals, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  ::execvp(arguments[0], const_cast<char* const*>(arguments.data()));
  throw Error(
      ErrorCode::kNotFound,
      interpreter + ": " + std::strerror(errno) +
          "; the report needs Python 3.11 with matplotlib and weasyprint: run scripts/setup "
          "--report, or set OSCAR_PYTHON");
}

}  // namespace

void add_report(CLI::App* program) {
  auto command = std::make_shared<ReportCommand>();
  CLI::App* app = program->add_subcommand(
      "report",
      "one HTML page and a PDF of the results in a folder, all of one model and version\n"
      "  oscar report results/");
  app->add_option("folder", command->folder, "holds the files that --json wrote")->required();
  app->add_option("-o,--output", command->output,
                  "the page (default: report.html in the folder); the PDF lies beside it")
      ->check([](const std::string& path) {
        return fs::path(path).extension() == ".html" ? "" : "needs the ending .html: " + path;
      });
  app->add_flag("--no-pdf", command->no_pdf, "the page alone");
  app->callback([command] { run_report(*command); });
}

}  // namespace oscar::tool

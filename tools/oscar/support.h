// What every command shares: options, tables, progress, JSON files.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/workbench.h"

namespace CLI {
class App;
}

namespace oscar::tool {

using Json = nlohmann::ordered_json;

// Set by SIGINT and SIGTERM.
const std::atomic<bool>& stop_flag();
void throw_if_stopped();  // Error(kInterrupted) once it is set
void catch_signals();

struct CommonOptions {
  std::string model;
  std::string json;  // file, "" for none
  int threads = 0;   // 0: all processors
  bool verbose = false;
};
void add_common_options(CLI::App* app, CommonOptions* options);
void add_json_option(CLI::App* app, CommonOptions* options);
// --seed, 0 to 2^32 − 2.
void add_seed_option(CLI::App* app, std::uint64_t* seed, const std::string& what);
int num_threads(const CommonOptions& options);
// A check for options of real numbers, beside CLI::Range, which lets "nan" through.
std::string finite(const std::string& text);

// The host and the model of a command, made after every option was parsed.
struct Session {
  std::unique_ptr<eval::Host> host;
  std::unique_ptr<eval::Workbench> workbench;
};
Session open_session(const CommonOptions& options);
// The path that open_session was given last, for the message of an abort; "" before.
const std::string& current_model();

// One line on stderr: what was done that the user did not ask for in so many words.
void note(const std::string& text);
void warn(const std::string& text);

std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));
std::string human_bytes(std::uint64_t bytes);  // "7.03 MiB"
// Text for one line: control characters become spaces, long text ends in "…".
std::string one_line(const std::string& text, std::size_t max_bytes);

// Columns are as wide as their widest cell; the first is left-aligned, the others right-aligned.
void print_table(const std::vector<std::vector<std::string>>& rows);

// Written whole or not at all. Keys that every result file has are added: version, host.
void write_json(const std::string& path, const Json& document);
std::string host_text();  // system, architecture, processors
Json json_header(const CommonOptions& options, const eval::Workbench& workbench);

// A line on stderr with the share done and the time left; silent where stderr is no terminal.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  void update(std::int64_t done, std::int64_t total);
  void clear();

 private:
  std::string what_;
  bool shown_ = false, terminal_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

// Beside the installed program or in its build folder.
std::string sample_text_path();
// A file of data/ by its name, found likewise.
std::string data_path(const std::string& name);

}  // namespace oscar::tool

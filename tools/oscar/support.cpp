#include "support.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <thread>

#include "base/atomic_file.h"
#include "base/cpu_features.h"
#include "base/error.h"
#include "output_file.h"

namespace oscar::tool {
namespace {

constexpr int kMaxThreads = 512;
constexpr std::int64_t kMaxSeed = std::int64_t{UINT32_MAX} - 1;  // llama.cpp's: the next is random
constexpr int kInterruptedExit = 130;

std::atomic<bool> stop_requested{false};
std::string model_path;

// The second signal does not wait for the work to notice the first.
void on_signal(int) {
  if (!stop_requested.exchange(true)) return;
  remove_temporary_files();
  constexpr std::string_view kMessage = "error: interrupted\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kMessage.data(), kMessage.size());
  ::_exit(kInterruptedExit);
}

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

// Columns that UTF-8 text takes, near enough: its characters.
std::size_t display_width(const std::string& text) {
  std::size_t width = 0;
  for (const char c : text) width += begins_character(c);
  return width;
}

// The characters of UTF-8 text that fit in.
std::string cut_to_columns(const std::string& text, std::size_t num_columns) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    width += begins_character(text[i]);
    if (width > num_columns) return text.substr(0, i);
  }
  return text;
}

// Of the terminal that stderr is; 0 where it does not say.
std::size_t terminal_columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace

const std::atomic<bool>& stop_flag() { return stop_requested; }

void throw_if_stopped() { eval::throw_if_stopped(&stop_requested); }

void catch_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  // A file that may not grow is an error of the write, not a death.
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGXFSZ, &action, nullptr);
}

void add_json_option(CLI::App* app, CommonOptions* options) {
  app->add_option("--json", options->json, "also write the results to this file")
      ->check(output_check(OutputKind::kJson));
}

void add_common_options(CLI::App* app, CommonOptions* options) {
  app->add_option("-m,--model", options->model, "the model, a GGUF file (its first shard)")
      ->required();
  app->add_option("-t,--threads", options->threads, "processor threads (default: all)")
      ->check(CLI::Range(1, kMaxThreads));
  app->add_flag("-v,--verbose", options->verbose,
                "show llama.cpp's and the plugin's log on stderr");
  add_json_option(app, options);
}

void add_seed_option(CLI::App* app, std::uint64_t* seed, const std::string& what) {
  app->add_option("--seed", *seed, what)
      ->check(CLI::Range(std::int64_t{0}, kMaxSeed))
      ->capture_default_str();
}

std::string finite(const std::string& text) {
  return std::isfinite(std::strtod(text.c_str(), nullptr)) ? "" : "'" + text + "' is no number";
}

int num_threads(const CommonOptions& options) {
  if (options.threads > 0) return options.threads;
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

Session open_session(const CommonOptions& options) {
  model_path = options.model;
  // The plugin logs to stderr by itself; refusals come back as errors, so it may be silent.
  if (std::getenv("OSCAR_LOG") == nullptr) {
    ::setenv("OSCAR_LOG", options.verbose ? "2" : "-1", 1);
  }
  eval::HostOptions host_options;
  host_options.stop = &stop_flag();
  if (options.verbose) {
    host_options.log = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  }
  Session session;
  session.host = std::make_unique<eval::Host>(host_options);
  session.workbench =
      std::make_unique<eval::Workbench>(session.host.get(), options.model, num_threads(options));
  return session;
}

const std::string& current_model() { return model_path; }

void note(const std::string& text) { std::fprintf(stderr, "note: %s\n", text.c_str()); }
void warn(const std::string& text) { std::fprintf(stderr, "warning: %s\n", text.c_str()); }

std::string format(const char* pattern, ...) {
  va_list arguments;
  va_start(arguments, pattern);
  char buffer[512];
  std::vsnprintf(buffer, sizeof buffer, pattern, arguments);
  va_end(arguments);
  return buffer;
}

std::string human_bytes(std::uint64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  return format(unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
}

std::string one_line(const std::string& text, std::size_t max_bytes) {
  std::string line;
  for (const char c : text) line += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  const auto first = line.find_first_not_of(' ');
  line.erase(0, std::min(first, line.size()));
  line.erase(line.find_last_not_of(' ') + 1);
  if (line.size() <= max_bytes) return line;
  std::size_t cut = max_bytes;
  while (cut > 0 && !begins_character(line[cut])) --cut;
  return line.substr(0, cut) + "…";
}

void print_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], display_width(row[i]));
    }
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - display_width(row[i]), ' ');
      line += i == 0 ? row[i] + padding : "  " + padding + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    std::printf("%s\n", line.c_str());
  }
}

void write_json(const std::string& path, const Json& document) {
  check_output(path, OutputKind::kJson);
  // Bytes of an answer that are no UTF-8 become U+FFFD: a model may end in half a character.
  write_file_atomically(path, document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::string host_text() {
  utsname names{};
  ::uname(&names);
  return std::string(names.sysname) + " " + names.machine + ", " +
         std::to_string(std::thread::hardware_concurrency()) + " processors";
}

Json json_header(const CommonOptions& options, const eval::Workbench& workbench) {
  Json header;
  header["version"] = OSCAR_VERSION;
  header["host"] = cpu_name();
  header["threads"] = num_threads(options);
  header["llama_cpp"] = eval::llama_version_text();
  header["model"] = std::filesystem::path(options.model).filename().string();
  header["model_hash"] = workbench.file().fingerprint.weights_hash;
  return header;
}

Progress::Progress(std::string what)
    : what_(std::move(what)),
      terminal_(::isatty(STDERR_FILENO) != 0),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

Progress::~Progress() { clear(); }

void Progress::update(std::int64_t done, std::int64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || done <= 0 || now - last_ < std::chrono::milliseconds(200)) return;
  last_ = now;
  shown_ = true;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double left = elapsed / static_cast<double>(done) * static_cast<double>(total - done);
  std::string line = what_ + format(": %lld of %lld, %d:%02d left", static_cast<long long>(done),
                                    static_cast<long long>(total), static_cast<int>(left) / 60,
                                    static_cast<int>(left) % 60);
  // A line that wraps could not be erased: "\r" goes back to the start of its last row. The last
  // column stays free, as some terminals wrap there already.
  if (const std::size_t columns = terminal_columns(); columns > 0) {
    line = cut_to_columns(line, columns - 1);
  }
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
}

void Progress::clear() {
  if (shown_) std::fprintf(stderr, "\r\033[K");
  shown_ = false;
}

std::string data_path(const std::string& name) {
  const std::string here = eval::executable_folder();
  for (const char* folder : {"../share/oscar-kv/", "../data/"}) {
    if (std::filesystem::exists(here + folder + name)) return here + folder + name;
  }
  throw Error(ErrorCode::kNotFound, "the built-in sample lies not in " + here +
                                        "../share/oscar-kv/" + name + "; give a text with -f");
}

std::string sample_text_path() { return data_path("calibration.txt"); }

}  // namespace oscar::tool

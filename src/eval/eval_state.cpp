#include "eval/eval_state.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/text.h"

namespace oscar::eval {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kStateVersion = 1;

std::string header_line(const RunIdentity& identity) {
  Json header;
  header["oscar_eval_state"] = kStateVersion;
  for (const auto& [name, value] : identity) header["run"][name] = value;
  return header.dump() + "\n";
}

std::string window_line(const std::vector<WindowScores>& lanes) {
  Json line = Json::array();
  for (const WindowScores& scores : lanes) {
    line.push_back({{"kl", scores.kl},
                    {"log_prob", scores.log_prob},
                    {"same_top", scores.same_top},
                    {"decode_seconds", scores.decode_seconds}});
  }
  return line.dump() + "\n";
}

std::vector<WindowScores> parse_window(const Json& line) {
  std::vector<WindowScores> lanes;
  for (const Json& lane : line) {
    WindowScores scores;
    lane.at("kl").get_to(scores.kl);
    lane.at("log_prob").get_to(scores.log_prob);
    lane.at("same_top").get_to(scores.same_top);
    lane.at("decode_seconds").get_to(scores.decode_seconds);
    if (scores.kl.size() != scores.log_prob.size() || scores.kl.size() != scores.same_top.size()) {
      throw Error(ErrorCode::kCorrupt, "lists of different lengths");
    }
    lanes.push_back(std::move(scores));
  }
  return lanes;
}

[[noreturn]] void refuse(const std::string& path, ErrorCode code, const std::string& why) {
  throw Error(code, path + ": " + why +
                        "; go on with the interrupted run's own options, or delete the file");
}

}  // namespace

EvalState::EvalState(std::string path, const RunIdentity& identity, std::size_t num_lanes)
    : path_(std::move(path)), header_(header_line(identity)) {
  if (!path_.empty() && std::filesystem::exists(path_)) read(identity, num_lanes);
}

void EvalState::read(const RunIdentity& identity, std::size_t num_lanes) {
  std::ifstream file(path_);
  std::string line;
  std::getline(file, line);
  const Json header = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object() || !header.contains("oscar_eval_state") || !header.contains("run")) {
    refuse(path_, ErrorCode::kCorrupt, "is not what an interrupted evaluation leaves");
  }
  if (header["oscar_eval_state"] != kStateVersion) {
    refuse(path_, ErrorCode::kMismatch,
           "has version " + header["oscar_eval_state"].dump() + "; this program writes " +
               std::to_string(kStateVersion));
  }
  for (const auto& [name, value] : identity) {
    const Json& there = header["run"].contains(name) ? header["run"][name] : Json("nothing");
    if (there == Json(value)) continue;
    refuse(path_, ErrorCode::kMismatch,
           "an interrupted evaluation of another " + name + " (" +
               in_quotes(there.is_string() ? there.get<std::string>() : there.dump()) + ", here " +
               in_quotes(value) + ")");
  }
  while (std::getline(file, line)) {
    const Json window = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!window.is_array() || window.size() != num_lanes) break;
    try {
      windows_.push_back(parse_window(window));
    } catch (const std::exception& error) {
      refuse(path_, ErrorCode::kCorrupt,
             std::string("a window's scores are broken: ") + error.what());
    }
  }
}

void EvalState::write_all_lines() {
  AtomicFile file(path_);
  file.write(header_);
  for (const auto& window : windows_) file.write(window_line(window));
  file.commit();
  started_ = true;
}

void EvalState::add(std::vector<WindowScores> lanes) {
  windows_.push_back(std::move(lanes));
  if (path_.empty()) return;
  // The first time the file is written anew: it may end in half a line.
  if (!started_) return write_all_lines();
  const std::string line = window_line(windows_.back());
  const int fd = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd < 0) return write_all_lines();
  try {
    write_all(fd, line.data(), line.size(), path_, 0);
  } catch (...) {
    ::close(fd);
    throw;
  }
  ::fsync(fd);
  ::close(fd);
}

void EvalState::remove(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
}

}  // namespace oscar::eval

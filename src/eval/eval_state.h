// What an interrupted evaluation leaves behind: the scores of the windows that were done. A text
// file, one JSON document a line; a line that was cut off by the interruption is ignored.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace oscar::eval {

// Scores of one cache on one window, in the order of scored_positions.
struct WindowScores {
  std::vector<double> kl, log_prob;
  std::vector<std::uint8_t> same_top;
  double decode_seconds = 0;
};

// What must be equal for two runs to give the same scores: names and values, in a fixed order.
using RunIdentity = std::vector<std::pair<std::string, std::string>>;

class EvalState {
 public:
  // path "": nothing is kept. An existing file must be of the same run; otherwise throws
  // Error(kMismatch) naming the file, what differs and both values, Error(kCorrupt) where it is no
  // such file.
  EvalState(std::string path, const RunIdentity& identity, std::size_t num_lanes);

  // [windows done][lanes]
  const std::vector<std::vector<WindowScores>>& windows() const { return windows_; }
  const std::string& path() const { return path_; }
  // Appends the window's line and makes it durable.
  void add(std::vector<WindowScores> lanes);
  // Forgets the last window.
  void drop_last() { windows_.pop_back(); }
  // The evaluation is complete and written elsewhere.
  static void remove(const std::string& path);

 private:
  void read(const RunIdentity& identity, std::size_t num_lanes);
  void write_all_lines();

  std::string path_, header_;
  std::vector<std::vector<WindowScores>> windows_;
  bool started_ = false;  // the file holds the header and windows_, nothing else
};

}  // namespace oscar::eval

#include "eval/document.h"

namespace oscar::eval {

std::vector<std::size_t> sentence_ends(std::string_view text) {
  std::vector<std::size_t> ends;
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    const bool full_stop = (text[i] == '.' || text[i] == '?' || text[i] == '!') &&
                           (text[i + 1] == ' ' || text[i + 1] == '\n');
    if (full_stop || text[i] == '\n') ends.push_back(i + 1);
  }
  if (!text.empty()) ends.push_back(text.size());
  return ends;
}

std::string_view cut_to_tokens(std::string_view text, std::int64_t max_tokens,
                               const TokenCounter& count) {
  const std::vector<std::size_t> ends = sentence_ends(text);
  std::size_t low = 0, high = ends.size();  // the first `low` sentences fit, `high` + 1 do not
  while (low < high) {
    const std::size_t middle = (low + high + 1) / 2;
    if (count(text.substr(0, ends[middle - 1])) <= max_tokens) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low == 0 ? std::string_view() : text.substr(0, ends[low - 1]);
}

}  // namespace oscar::eval

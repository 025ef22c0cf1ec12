#include "eval/answer_scoring.h"

#include <algorithm>

namespace oscar::eval {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_word_byte(char c) {
  return is_digit(c) || is_upper(c) || (c >= 'a' && c <= 'z') ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool is_number(const std::string& word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), is_digit);
}

struct Piece {
  std::string word;
  std::string_view gap;  // what stands between it and the one before
};

std::vector<Piece> pieces(std::string_view text) {
  std::vector<Piece> result;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t gap = at;
    while (at < text.size() && !is_word_byte(text[at])) ++at;
    if (at == text.size()) break;
    Piece piece{"", text.substr(gap, at - gap)};
    for (; at < text.size() && is_word_byte(text[at]); ++at) {
      piece.word += is_upper(text[at]) ? static_cast<char>(text[at] - 'A' + 'a') : text[at];
    }
    result.push_back(std::move(piece));
  }
  return result;
}

bool joins(const std::string& last_part, const Piece& piece) {
  if (piece.gap.size() != 1 || !is_number(last_part) || !is_number(piece.word)) return false;
  const bool thousands = piece.word.size() == 3 && last_part.size() <= 3 &&
                         std::string_view(",.' ").find(piece.gap[0]) != std::string_view::npos;
  const bool spelled = piece.gap[0] == '-' && piece.word.size() == 1 && last_part.size() == 1;
  return thousands || spelled;
}

}  // namespace

std::vector<std::string> answer_words(std::string_view text) {
  std::vector<std::string> words;
  std::string last_part;  // of a joined number
  for (const Piece& piece : pieces(text)) {
    if (!words.empty() && joins(last_part, piece)) {
      words.back() += piece.word;
    } else {
      words.push_back(piece.word);
    }
    last_part = piece.word;
  }
  return words;
}

bool answer_is_right(std::string_view answer, const std::vector<std::string>& accepted) {
  const std::vector<std::string> words = answer_words(answer);
  return std::any_of(accepted.begin(), accepted.end(), [&](const std::string& one) {
    const std::vector<std::string> wanted = answer_words(one);
    return !wanted.empty() &&
           std::search(words.begin(), words.end(), wanted.begin(), wanted.end()) != words.end();
  });
}

std::string first_number(std::string_view answer) {
  const std::vector<std::string> words = answer_words(answer);
  const auto found = std::find_if(words.begin(), words.end(), is_number);
  return found == words.end() ? "" : *found;
}

double digit_share(std::string_view answer, const std::string& expected) {
  const std::string number = first_number(answer);
  if (expected.empty() || number.empty()) return 0;
  std::size_t same = 0;
  for (std::size_t i = 0; i < std::min(number.size(), expected.size()); ++i) {
    same += number[i] == expected[i];
  }
  return static_cast<double>(same) / static_cast<double>(std::max(number.size(), expected.size()));
}

double word_share(std::string_view answer, const std::string& expected) {
  const std::vector<std::string> words = answer_words(answer), wanted = answer_words(expected);
  if (wanted.empty()) return 0;
  const auto found = std::count_if(wanted.begin(), wanted.end(), [&](const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  });
  return static_cast<double>(found) / static_cast<double>(wanted.size());
}

}  // namespace oscar::eval

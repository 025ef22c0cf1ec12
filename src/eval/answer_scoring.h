// Whether an answer is right, decided from its text alone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace oscar::eval {

// The words of a text in lower case: runs of ASCII letters, digits and bytes beyond ASCII. Digits
// that only ',', '.', '-', '\'' or a space keep apart from three more digits, or single digits kept
// apart by '-', are one number: "9,400" and "4-7-1-9" are "9400" and "4719".
std::vector<std::string> answer_words(std::string_view text);

// Whether the words of one of `accepted` stand in the answer, one after the other.
bool answer_is_right(std::string_view answer, const std::vector<std::string>& accepted);

// The first number in the answer, "" without one.
std::string first_number(std::string_view answer);

// Share of the digits of `expected` that the answer's first number has at the same place, 0 to 1; 1
// only where the two are equal.
double digit_share(std::string_view answer, const std::string& expected);

// Share of the expected words that occur in the answer, 0 to 1.
double word_share(std::string_view answer, const std::string& expected);

}  // namespace oscar::eval

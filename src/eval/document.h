// Documents of a wanted length, cut from a text between sentences.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace oscar::eval {

using TokenCounter = std::function<std::int64_t(std::string_view)>;

// Offsets at which a sentence or a line has just ended, ascending, the text's end last.
std::vector<std::size_t> sentence_ends(std::string_view text);

// The longest beginning of the text, whole sentences, that has at most max_tokens tokens. Empty
// where the first sentence is longer.
std::string_view cut_to_tokens(std::string_view text, std::int64_t max_tokens,
                               const TokenCounter& count);

}  // namespace oscar::eval

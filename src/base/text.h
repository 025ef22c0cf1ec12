// Text for messages.
#pragma once

#include <string>
#include <string_view>

namespace oscar {

// `text` in single quotes, fit for a one-line message whatever it holds: control characters,
// quotes, backslashes and bytes that are not UTF-8 are written \xNN, and what is longer than
// kMaxQuotedBytes is cut with "...".
inline constexpr std::size_t kMaxQuotedBytes = 256;
std::string in_quotes(std::string_view text);

// Six significant digits: "0.0201", "1e+30", "nan".
std::string number_text(double value);

}  // namespace oscar

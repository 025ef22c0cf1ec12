#include "base/text.h"

#include <cstdio>

namespace oscar {

namespace {

// Bytes of the printable character at the front of `text`; 0: none that is whole, well-formed and
// printable.
std::size_t printable_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return lead >= 0x20 && lead != 0x7f ? 1 : 0;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  unsigned point = lead & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0u) != 0x80u) return 0;
    point = point << 6 | (byte(i) & 0x3fu);
  }
  constexpr unsigned kSmallest[] = {0, 0, 0xa0, 0x800, 0x10000};  // U+0080 to U+009F are controls
  const bool surrogate = point >= 0xd800 && point <= 0xdfff;
  // Line and paragraph separators, and marks that turn the direction of what follows.
  const bool steers = (point >= 0x2028 && point <= 0x202e) || (point >= 0x2066 && point <= 0x2069);
  return point < kSmallest[length] || point > 0x10ffff || surrogate || steers ? 0 : length;
}

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out = "'";
  std::size_t at = 0;
  while (at < text.size()) {
    const char c = text[at];
    const std::size_t length = c == '\'' || c == '\\' ? 0 : printable_length(text.substr(at));
    const std::size_t taken = length == 0 ? 1 : length;
    if (at + taken > kMaxQuotedBytes) return out + "...'";
    if (length == 0) {
      const auto byte = static_cast<unsigned char>(c);
      out += "\\x";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    } else {
      out += text.substr(at, length);
    }
    at += taken;
  }
  return out + "'";
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

}  // namespace oscar

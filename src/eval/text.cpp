#include "eval/text.h"

#include <algorithm>

#include "base/error.h"

namespace oscar::eval {
namespace {

// Below this a text is one piece, as a stock program would tokenise it.
constexpr std::size_t kPieceBytes = 1 << 20;
// Tokenisers take time and stack for a line that grow faster than its length.
constexpr std::size_t kMaxLineBytes = 16 << 10;

// Length of the character that starts with `lead`, 0 when none does.
std::size_t character_bytes(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return 2;
  if (lead >= 0xe0 && lead <= 0xef) return 3;
  if (lead >= 0xf0 && lead <= 0xf4) return 4;
  return 0;
}

// The second byte's range is narrower where it would make an overlong form, a surrogate, or a code
// point past U+10FFFF.
bool second_byte_fits(unsigned char lead, unsigned char second) {
  const unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  return second >= low && second <= high;
}

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

std::size_t character_boundary(std::string_view text, std::size_t at) {
  while (at > 0 && is_continuation(text[at])) --at;
  return at;
}

}  // namespace

std::optional<std::uint64_t> first_invalid_utf8(std::string_view bytes) {
  std::size_t i = 0;
  while (i < bytes.size()) {
    const auto lead = static_cast<unsigned char>(bytes[i]);
    const std::size_t length = character_bytes(lead);
    if (length == 0 || length > bytes.size() - i) return i;
    if (length > 1 && !second_byte_fits(lead, static_cast<unsigned char>(bytes[i + 1]))) return i;
    for (std::size_t k = 2; k < length; ++k) {
      if (!is_continuation(bytes[i + k])) return i;
    }
    i += length;
  }
  return std::nullopt;
}

void check_utf8(const std::string& name, std::string_view text) {
  const auto offset = first_invalid_utf8(text);
  if (!offset) return;
  throw Error(ErrorCode::kInvalidArgument, name + " is not UTF-8: the byte at offset " +
                                               std::to_string(*offset) +
                                               " belongs to no character");
}

std::size_t incomplete_utf8_tail(std::string_view bytes) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, bytes.size()); ++back) {
    const char c = bytes[bytes.size() - back];
    if (is_continuation(c)) continue;
    return character_bytes(static_cast<unsigned char>(c)) > back ? back : 0;
  }
  return 0;
}

TextFile::TextFile(const std::string& path) : path_(path), file_(path) {
  if (bytes().empty()) {
    throw Error(ErrorCode::kInvalidArgument, path + ": is empty; a UTF-8 text is needed");
  }
  if (const auto offset = first_invalid_utf8(bytes())) {
    throw Error(ErrorCode::kInvalidArgument,
                path + ": is not UTF-8: the byte at offset " + std::to_string(*offset) +
                    " belongs to no character; convert it, e.g. with iconv -t UTF-8");
  }
  if (const std::size_t nul = bytes().find('\0'); nul != std::string_view::npos) {
    throw Error(ErrorCode::kInvalidArgument, path + ": the byte at offset " + std::to_string(nul) +
                                                 " is NUL, which no text holds; is it a text?");
  }
}

std::string_view TextFile::bytes() const {
  const auto span = file_.bytes();
  return {reinterpret_cast<const char*>(span.data()), span.size()};
}

std::size_t next_piece_bytes(std::string_view rest) {
  const std::size_t limit = std::min(rest.size(), kPieceBytes);
  std::size_t line_start = 0;
  for (std::size_t i = 0; i < limit; ++i) {
    if (rest[i] == '\n') line_start = i + 1;
    if (i - std::min(i, line_start) < kMaxLineBytes) continue;
    if (line_start > 0) return line_start;
    // One long line: between words, where the next one begins with its space.
    for (std::size_t cut = i; cut > kMaxLineBytes / 2; --cut) {
      if (is_space(rest[cut]) && !is_space(rest[cut - 1])) return cut;
    }
    return character_boundary(rest, i);
  }
  if (limit == rest.size()) return limit;
  return line_start > 0 ? line_start : character_boundary(rest, limit);
}

namespace {

// first: the tokeniser adds what a text begins with.
std::vector<llama_token> tokenize_pieces(const llama_vocab* vocab, std::string_view text,
                                         std::int64_t max_tokens, bool parse_special, bool first) {
  std::vector<llama_token> tokens;
  while (!text.empty() && static_cast<std::int64_t>(tokens.size()) < max_tokens) {
    const std::string_view piece = text.substr(0, next_piece_bytes(text));
    text.remove_prefix(piece.size());
    const std::size_t before = tokens.size();
    // A token is at least one byte; BOS and a space that some vocabularies add come on top.
    std::size_t room = piece.size() + 8;
    std::int32_t count = 0;
    for (int attempt = 0; attempt < 2; ++attempt) {
      tokens.resize(before + room);
      count = llama_tokenize(vocab, piece.data(), static_cast<std::int32_t>(piece.size()),
                             tokens.data() + before, static_cast<std::int32_t>(room), first,
                             parse_special);
      if (count >= 0) break;
      if (count == INT32_MIN) break;
      room = static_cast<std::size_t>(-static_cast<std::int64_t>(count));
    }
    if (count < 0) throw Error(ErrorCode::kUnsupported, "the model's tokeniser refused the text");
    tokens.resize(before + static_cast<std::size_t>(count));
    first = false;
  }
  if (static_cast<std::int64_t>(tokens.size()) > max_tokens) {
    tokens.resize(static_cast<std::size_t>(max_tokens));
  }
  return tokens;
}

}  // namespace

std::vector<llama_token> tokenize(const llama_vocab* vocab, std::string_view text,
                                  std::int64_t max_tokens, bool parse_special) {
  return tokenize_pieces(vocab, text, max_tokens, parse_special, /*first=*/true);
}

std::vector<llama_token> tokenize_more(const llama_vocab* vocab, std::string_view text,
                                       std::int64_t max_tokens, bool parse_special) {
  return tokenize_pieces(vocab, text, max_tokens, parse_special, /*first=*/false);
}

std::string token_text(const llama_vocab* vocab, llama_token token) {
  std::string text(64, '\0');
  for (int attempt = 0; attempt < 2; ++attempt) {
    const std::int32_t count =
        llama_token_to_piece(vocab, token, text.data(), static_cast<std::int32_t>(text.size()), 0,
                             /*special=*/false);
    text.resize(static_cast<std::size_t>(count < 0 ? -count : count));
    if (count >= 0) break;
  }
  return text;
}

}  // namespace oscar::eval

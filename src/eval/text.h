// Texts from files: checked UTF-8, tokenised in pieces so that one long line costs no more than
// many short ones.
#pragma once

#include <llama.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"

namespace oscar::eval {

// Offset of the first byte that is not part of well-formed UTF-8 (RFC 3629); empty: all is.
std::optional<std::uint64_t> first_invalid_utf8(std::string_view bytes);

// Throws Error(kInvalidArgument) that begins with `name` and gives the offset, where `text` is not
// UTF-8.
void check_utf8(const std::string& name, std::string_view text);

// Bytes of the incomplete character at the end, 0 to 3: what a stream must hold back.
std::size_t incomplete_utf8_tail(std::string_view bytes);

// A non-empty UTF-8 file without NUL. CRLF is kept as it is. Owns the mapping; `bytes` lives as
// long.
class TextFile {
 public:
  // Throws Error(kNotFound | kIo), or Error(kInvalidArgument) naming the file and the byte offset.
  explicit TextFile(const std::string& path);
  const std::string& path() const { return path_; }
  std::string_view bytes() const;

 private:
  std::string path_;
  MappedFile file_;
};

// Where the next piece ends: at a line's end, else before a space, else between two characters.
std::size_t next_piece_bytes(std::string_view rest);

// At most max_tokens tokens; begins with BOS where the vocabulary asks for it. `parse_special`: the
// names of control tokens (<|im_start|>) become these tokens, which only a chat template needs.
std::vector<llama_token> tokenize(const llama_vocab* vocab, std::string_view text,
                                  std::int64_t max_tokens, bool parse_special);

// The same for text that goes on behind other tokens: no BOS.
std::vector<llama_token> tokenize_more(const llama_vocab* vocab, std::string_view text,
                                       std::int64_t max_tokens, bool parse_special);

// The token's text; control tokens have none.
std::string token_text(const llama_vocab* vocab, llama_token token);

}  // namespace oscar::eval

// How alike two generated texts are, and whether one of them is garbage.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace oscar::eval {

using TokenList = std::vector<std::int32_t>;

// Tokens that the two have in common from the start.
std::int64_t common_prefix(const TokenList& a, const TokenList& b);

// Share of n-grams that the two have in common, counted with multiplicity: 2·|a ∩ b| / (|a| + |b|);
// 1 where neither has one.
double ngram_overlap(const TokenList& a, const TokenList& b, int n);

// Share of the n-grams that occurred before in the same list, 0 to 1. A loop comes close to 1.
double repeated_share(const TokenList& tokens, int n);

// The most tokens at the end that are one shorter passage over and over, at least three times; 0:
// none.
std::int64_t loop_length(const TokenList& tokens);

// Characters that do not belong: of no script that `known` uses, U+FFFD, or bytes that are no
// UTF-8. A script is a Unicode block of letters, roughly: see the source. Share of all characters.
double foreign_share(std::string_view text, std::string_view known);

}  // namespace oscar::eval

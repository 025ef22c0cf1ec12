#include "eval/agreement.h"

#include <algorithm>
#include <map>
#include <set>

#include "eval/text.h"

namespace oscar::eval {
namespace {

using Counts = std::map<TokenList, std::int64_t>;

constexpr std::int64_t kMinLoops = 3;
constexpr std::uint32_t kReplacement = 0xfffd;

Counts ngrams(const TokenList& tokens, int n) {
  Counts counts;
  for (auto first = tokens.begin(); tokens.end() - first >= n; ++first) {
    ++counts[TokenList(first, first + n)];
  }
  return counts;
}

std::int64_t num_ngrams(const TokenList& tokens, int n) {
  return std::max<std::int64_t>(std::ssize(tokens) - n + 1, 0);
}

// First code points of stretches of Unicode that hold one script, or a few related ones. 0 is
// common to all: ASCII punctuation and digits, general punctuation, symbols.
constexpr std::uint32_t kScripts[] = {0x0370, 0x0400, 0x0530, 0x0590, 0x0600, 0x0700,
                                      0x0900, 0x0980, 0x0e00, 0x0e80, 0x1000, 0x10a0,
                                      0x1100, 0x1200, 0x13a0, 0x3040, 0x3100, 0x3400,
                                      0xa000, 0xac00, 0xd800, 0xf900, 0xfb50, 0x20000};
constexpr int kCommon = 0, kLatin = 1, kFirstOther = 2;

int script_of(std::uint32_t c) {
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  if (c < 0x80) return letter ? kLatin : kCommon;
  if (c < 0xc0) return kCommon;
  if (c < kScripts[0]) return kLatin;
  if (c >= 0x1e00 && c < 0x1f00) return kLatin;
  if (c >= 0x2000 && c < 0x3040) return kCommon;    // punctuation, arrows, mathematics, boxes
  if (c >= 0xfe00 && c < 0xfe10) return kCommon;    // variation selectors
  if (c >= 0x1f000 && c < 0x1fb00) return kCommon;  // emoji
  const auto next = std::upper_bound(std::begin(kScripts), std::end(kScripts), c);
  return kFirstOther + static_cast<int>(next - std::begin(kScripts));
}

// The code point at `at`, which moves behind it; bytes that are no UTF-8 are U+FFFD each.
std::uint32_t next_character(std::string_view text, std::size_t* at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(*at);
  const std::size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  const std::string_view whole = text.substr(*at, length);
  if (whole.size() < length || first_invalid_utf8(whole)) {
    ++*at;
    return kReplacement;
  }
  std::uint32_t c = length == 1 ? lead : lead & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) c = c << 6 | (byte(*at + i) & 0x3fu);
  *at += length;
  return c;
}

}  // namespace

std::int64_t common_prefix(const TokenList& a, const TokenList& b) {
  const auto end = std::min(a.size(), b.size());
  std::size_t same = 0;
  while (same < end && a[same] == b[same]) ++same;
  return static_cast<std::int64_t>(same);
}

double ngram_overlap(const TokenList& a, const TokenList& b, int n) {
  const std::int64_t total = num_ngrams(a, n) + num_ngrams(b, n);
  if (total == 0) return 1;
  const Counts left = ngrams(a, n), right = ngrams(b, n);
  std::int64_t shared = 0;
  for (const auto& [ngram, count] : left) {
    const auto found = right.find(ngram);
    if (found != right.end()) shared += std::min(count, found->second);
  }
  return 2.0 * static_cast<double>(shared) / static_cast<double>(total);
}

double repeated_share(const TokenList& tokens, int n) {
  const std::int64_t total = num_ngrams(tokens, n);
  if (total == 0) return 0;
  return 1.0 - static_cast<double>(ngrams(tokens, n).size()) / static_cast<double>(total);
}

std::int64_t loop_length(const TokenList& tokens) {
  const std::int64_t count = std::ssize(tokens);
  std::int64_t longest = 0;
  for (std::int64_t period = 1; kMinLoops * period <= count; ++period) {
    std::int64_t length = period;
    while (length < count && tokens[static_cast<std::size_t>(count - 1 - length)] ==
                                 tokens[static_cast<std::size_t>(count - 1 - length + period)]) {
      ++length;
    }
    if (length >= kMinLoops * period) longest = std::max(longest, length);
  }
  return longest;
}

double foreign_share(std::string_view text, std::string_view known) {
  std::set<int> scripts = {kCommon};
  for (std::size_t at = 0; at < known.size();)
    scripts.insert(script_of(next_character(known, &at)));
  std::int64_t total = 0, foreign = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::uint32_t c = next_character(text, &at);
    ++total;
    foreign += c == kReplacement || scripts.count(script_of(c)) == 0;
  }
  return total == 0 ? 0 : static_cast<double>(foreign) / static_cast<double>(total);
}

}  // namespace oscar::eval

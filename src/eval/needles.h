// Needles in a haystack: facts that a text cannot help to guess, put into it at given depths.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "eval/document.h"

namespace oscar::eval {

enum class NeedleForm {
  kPasskey,   // a number of five digits
  kSentence,  // where somebody hid something: a colour and a thing
};
const char* needle_form_name(NeedleForm form);
// Throws Error(kInvalidArgument) naming the form and the legal ones.
NeedleForm needle_form_from_name(const std::string& name);

struct Needle {
  NeedleForm form = NeedleForm::kPasskey;
  std::string sentence;  // as it stands in the document
  std::string question;
  std::string expected;
};

// `count` needles about different things with different answers. The same for one seed everywhere.
// Throws Error(kInvalidArgument) where more are wanted than there are, see kMaxNeedles.
std::vector<Needle> make_needles(NeedleForm form, int count, std::uint64_t seed);
inline constexpr int kMaxNeedles = 16;

struct NeedleScore {
  bool right = false;
  double share = 0;  // of the digits, or of the words
};
NeedleScore score_needle(const Needle& needle, std::string_view answer);

// At most max_tokens tokens of `text`, repeated where it is too short, with needles[i] behind the
// sentence that ends nearest to depths[i] of it (0 to 1: the beginning to the end). Throws
// Error(kInvalidArgument) where the needles alone are longer.
std::string make_haystack(std::string_view text, const std::vector<Needle>& needles,
                          const std::vector<double>& depths, std::int64_t max_tokens,
                          const TokenCounter& count);

}  // namespace oscar::eval

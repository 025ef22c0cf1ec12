#include "eval/needles.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <random>

#include "base/error.h"
#include "base/text.h"
#include "eval/answer_scoring.h"

namespace oscar::eval {
namespace {

constexpr const char* kNames[kMaxNeedles] = {
    "Agnes",  "Bruno", "Clara",  "Dmitri", "Elena",  "Farid", "Greta", "Hiro",
    "Ingrid", "Jamal", "Katrin", "Luis",   "Mirela", "Nadia", "Oskar", "Priya"};
constexpr const char* kThings[kMaxNeedles] = {
    "lantern", "compass", "violin", "telescope", "typewriter", "saddle",  "anchor", "camera",
    "clock",   "kettle",  "ladder", "umbrella",  "mirror",     "trumpet", "globe",  "sledge"};
constexpr const char* kColours[kMaxNeedles] = {
    "purple", "yellow", "orange", "silver", "golden", "crimson", "turquoise", "white",
    "black",  "brown",  "green",  "blue",   "red",    "grey",    "pink",      "violet"};
constexpr const char* kPlaces[kMaxNeedles] = {
    "barrel",   "piano",  "bathtub", "suitcase", "wardrobe", "bucket", "teapot", "drum",
    "cupboard", "basket", "oven",    "coffin",   "wagon",    "tent",   "canoe",  "chimney"};

std::vector<int> shuffled(std::mt19937_64* random) {
  std::vector<int> order(kMaxNeedles);
  for (int i = 0; i < kMaxNeedles; ++i) order[static_cast<std::size_t>(i)] = i;
  // std::shuffle differs between libraries.
  for (std::size_t i = order.size() - 1; i > 0; --i)
    std::swap(order[i], order[(*random)() % (i + 1)]);
  return order;
}

Needle passkey(const std::string& thing, std::mt19937_64* random) {
  Needle needle;
  needle.form = NeedleForm::kPasskey;
  needle.expected = std::to_string(10000 + (*random)() % 90000);
  needle.sentence = "The pass key of the " + thing + " is " + needle.expected + ".";
  needle.question = "What is the pass key of the " + thing + "? Answer with the number alone.";
  return needle;
}

Needle hidden_thing(const std::string& name, const std::string& thing, const std::string& colour,
                    const std::string& place) {
  Needle needle;
  needle.form = NeedleForm::kSentence;
  needle.expected = colour + " " + place;
  needle.sentence = name + " hid the " + thing + " in the " + needle.expected + ".";
  needle.question = "Where did " + name + " hide the " + thing + "? Answer with a few words.";
  return needle;
}

}  // namespace

const char* needle_form_name(NeedleForm form) {
  return form == NeedleForm::kPasskey ? "passkey" : "sentence";
}

NeedleForm needle_form_from_name(const std::string& name) {
  for (const NeedleForm form : {NeedleForm::kPasskey, NeedleForm::kSentence}) {
    if (name == needle_form_name(form)) return form;
  }
  throw Error(ErrorCode::kInvalidArgument,
              "--form " + in_quotes(name) + " is unknown; forms: passkey, sentence");
}

std::vector<Needle> make_needles(NeedleForm form, int count, std::uint64_t seed) {
  if (count > kMaxNeedles) {
    throw Error(ErrorCode::kInvalidArgument, std::to_string(count) +
                                                 " needles in one document are too many; at most " +
                                                 std::to_string(kMaxNeedles));
  }
  std::mt19937_64 random(seed);
  const std::vector<int> names = shuffled(&random), things = shuffled(&random);
  const std::vector<int> colours = shuffled(&random), places = shuffled(&random);
  std::vector<Needle> needles;
  while (std::ssize(needles) < count) {
    const auto i = needles.size();
    Needle needle = form == NeedleForm::kPasskey
                        ? passkey(kThings[things[i]], &random)
                        : hidden_thing(kNames[names[i]], kThings[things[i]], kColours[colours[i]],
                                       kPlaces[places[i]]);
    const bool used = std::any_of(needles.begin(), needles.end(), [&](const Needle& other) {
      return other.expected == needle.expected;
    });
    if (!used) needles.push_back(std::move(needle));
  }
  return needles;
}

NeedleScore score_needle(const Needle& needle, std::string_view answer) {
  if (needle.form == NeedleForm::kPasskey) {
    return {first_number(answer) == needle.expected, digit_share(answer, needle.expected)};
  }
  return {answer_is_right(answer, {needle.expected}), word_share(answer, needle.expected)};
}

std::string make_haystack(std::string_view text, const std::vector<Needle>& needles,
                          const std::vector<double>& depths, std::int64_t max_tokens,
                          const TokenCounter& count) {
  std::string all;
  for (const Needle& needle : needles) all += " " + needle.sentence;
  // Between other sentences a needle may take a token more than alone.
  const std::int64_t needle_tokens = count(all) + static_cast<std::int64_t>(needles.size());
  if (needle_tokens >= max_tokens) {
    throw Error(ErrorCode::kInvalidArgument,
                std::to_string(needles.size()) + " needle(s) of " + std::to_string(needle_tokens) +
                    " tokens are longer than the " +
                    std::to_string(std::max<std::int64_t>(max_tokens, 0)) +
                    " that the context leaves for a document");
  }
  std::string repeated(text);
  while (count(repeated) < max_tokens) repeated += "\n" + std::string(text);
  const std::string_view hay = cut_to_tokens(repeated, max_tokens - needle_tokens, count);
  std::vector<std::size_t> ends = sentence_ends(hay);
  ends.insert(ends.begin(), 0);
  // From the end, so that the places of those before stay what they are.
  std::vector<std::pair<std::size_t, std::size_t>> places;  // offset, needle
  for (std::size_t i = 0; i < needles.size(); ++i) {
    const double wanted = depths[i] * static_cast<double>(hay.size());
    const auto nearest = std::min_element(ends.begin(), ends.end(), [&](auto a, auto b) {
      return std::abs(static_cast<double>(a) - wanted) < std::abs(static_cast<double>(b) - wanted);
    });
    places.emplace_back(*nearest, i);
  }
  std::sort(places.rbegin(), places.rend());
  std::string document(hay);
  for (const auto& [offset, needle] : places) {
    const bool fresh_line = offset == 0 || document[offset - 1] == '\n';
    const std::string& sentence = needles[needle].sentence;
    document.insert(offset, fresh_line ? sentence + " " : " " + sentence);
  }
  return document;
}

}  // namespace oscar::eval

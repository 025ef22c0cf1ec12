#include "format/kv_spec.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace oscar {
namespace {

constexpr const char* kHostTypes[] = {"f16", "q8_0", "q4_0"};
constexpr int kLegalBits[] = {2, 3, 4, 16};
constexpr const char* kOptionList =
    "k2v2 (bits 2, 3, 4, 16), bits=2.5, sink=N, recent=N, group=N, no-u, no-p, no-hadamard, "
    "no-clip, "
    "no-mean, "
    "unbiased, trellis, float";

class Parser {
 public:
  explicit Parser(const std::string& text) { spec_.text = text; }

  KvSpec parse() {
    const std::string& text = spec_.text;
    if (text.empty()) refuse("it is empty; give f16, q8_0, q4_0, a method, or an artefact file");
    const auto first_colon = text.find(':');
    if (is_name(text.substr(0, first_colon))) {
      set_name(text.substr(0, first_colon));
      if (first_colon != std::string::npos) parse_options(text.substr(first_colon + 1));
      return spec_;
    }
    spec_.kind = KvSpec::Kind::kFile;
    const auto last_colon = text.rfind(':');
    if (last_colon == std::string::npos || !splits_at(last_colon)) {
      spec_.file = text;
      return spec_;
    }
    spec_.file = text.substr(0, last_colon);
    if (spec_.file.empty()) refuse("there is no method or file before the ':'");
    parse_options(text.substr(last_colon + 1));
    return spec_;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ErrorCode::kInvalidArgument, "--kv " + in_quotes(spec_.text) + ": " + why);
  }

  static bool is_host_type(const std::string& name) {
    return std::find(std::begin(kHostTypes), std::end(kHostTypes), name) != std::end(kHostTypes);
  }

  static bool is_name(const std::string& name) {
    return is_host_type(name) || is_method_name(name);
  }

  void set_name(const std::string& name) {
    if (is_host_type(name)) {
      spec_.kind = KvSpec::Kind::kHostType;
      spec_.host_type = name;
    } else {
      spec_.kind = KvSpec::Kind::kMethod;
      spec_.method = method_from_name(name);
    }
  }

  // Whether the last ':' of a file's specification ends the path. A file of the whole name wins;
  // then a file of the name before the ':'; where neither exists, what follows is taken for options
  // unless it reads as the rest of a path.
  bool splits_at(std::string::size_type colon) const {
    const auto exists = [](const std::string& path) {
      std::error_code ignored;
      return std::filesystem::exists(path, ignored);
    };
    if (exists(spec_.text)) return false;
    if (exists(spec_.text.substr(0, colon))) return true;
    const std::string_view tail = std::string_view(spec_.text).substr(colon + 1);
    return tail.find_first_of("/.") == std::string_view::npos ||
           tail.find('=') != std::string_view::npos;
  }

  void parse_options(const std::string& list) {
    if (spec_.kind == KvSpec::Kind::kHostType) {
      refuse(in_quotes(spec_.host_type) + " is llama.cpp's own cache and takes no options, but " +
             in_quotes(list) + " is given");
    }
    std::string::size_type begin = 0;
    while (begin <= list.size()) {
      const auto end = std::min(list.find(',', begin), list.size());
      parse_option(list.substr(begin, end - begin));
      begin = end + 1;
    }
  }

  void parse_option(const std::string& option) {
    if (option.empty()) refuse(std::string("an option is empty; options: ") + kOptionList);
    const auto equals = option.find('=');
    const std::string key = option.substr(0, equals);
    if (equals != std::string::npos) {
      const std::string value = option.substr(equals + 1);
      if (key == "sink") {
        spec_.sink_tokens = number(option, value, 0, kMaxWindowTokens, 1);
      } else if (key == "recent") {
        spec_.recent_tokens = number(option, value, 0, kMaxWindowTokens, 1);
      } else if (key == "bits") {
        spec_.bit_budget = budget(option, value);
      } else if (key == "group") {
        spec_.group_size = number(option, value, kGroupMultiple, kMaxHeadDim, kGroupMultiple);
      } else {
        unknown(option);
      }
      once(key, option);
    } else if (bool* flag = flag_named(option)) {
      *flag = true;
      once(option, option);
    } else if (!parse_bits(option)) {
      unknown(option);
    }
  }

  bool* flag_named(const std::string& name) {
    if (name == "no-u") return &spec_.no_eigenbasis;
    if (name == "no-p") return &spec_.no_permutation;
    if (name == "no-hadamard") return &spec_.no_hadamard;
    if (name == "no-clip") return &spec_.no_clip;
    if (name == "no-mean") return &spec_.no_mean;
    if (name == "unbiased") return &spec_.unbiased;
    if (name == "trellis") return &spec_.trellis;
    if (name == "float") return &spec_.force_float;
    return nullptr;
  }

  // kNvM. Anything that starts with k or v and a digit was meant as bits, so it is told what bits
  // look like.
  bool parse_bits(const std::string& option) {
    const bool meant = option.size() >= 2 && (option[0] == 'k' || option[0] == 'v') &&
                       option[1] >= '0' && option[1] <= '9';
    if (!meant) return false;
    const auto v = option.find('v');
    if (option[0] != 'k' || v == std::string::npos || v + 1 == option.size()) {
      refuse("option " + in_quotes(option) + " gives bits of one side; give both, as in k3v2");
    }
    spec_.k_bits = bits(option, option.substr(1, v - 1));
    spec_.v_bits = bits(option, option.substr(v + 1));
    once("bits", option);
    return true;
  }

  int bits(const std::string& option, const std::string& digits) const {
    for (const int legal : kLegalBits) {
      if (digits == std::to_string(legal)) return legal;
    }
    refuse("option " + in_quotes(option) + " has " + in_quotes(digits) +
           " bits; legal: 2, 3, 4, 16");
  }

  int number(const std::string& option, const std::string& digits, int min, int max,
             int multiple) const {
    int value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < min ||
        value > max || value % multiple != 0) {
      refuse("option " + in_quotes(option) + " has the value " + in_quotes(digits) +
             "; legal: whole numbers from " + std::to_string(min) + " to " + std::to_string(max) +
             (multiple > 1 ? ", multiples of " + std::to_string(multiple) : ""));
    }
    return value;
  }

  double budget(const std::string& option, const std::string& digits) const {
    double value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value,
                                              std::chars_format::fixed);
    if (error != std::errc() || end != digits.data() + digits.size() ||
        !(value >= kMinBitBudget && value <= kMaxBitBudget)) {
      refuse("option " + in_quotes(option) + " has the value " + in_quotes(digits) +
             "; legal: numbers from 2 to 16, as 2.5");
    }
    return value;
  }

  void once(const std::string& key, const std::string& option) {
    if (!seen_.insert(key).second) {
      refuse("option " + in_quotes(option) + " is given, but " + key +
             " was set before; give it once");
    }
  }

  [[noreturn]] void unknown(const std::string& option) const {
    refuse("option " + in_quotes(option) + " is unknown; options: " + kOptionList);
  }

  KvSpec spec_;
  std::set<std::string> seen_;
};

}  // namespace

KvSpec parse_kv_spec(const std::string& text) { return Parser(text).parse(); }

}  // namespace oscar

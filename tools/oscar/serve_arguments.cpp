#include "serve_arguments.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/error.h"

namespace oscar::tool {
namespace {

// Those with a value, then those without.
constexpr std::string_view kOwnWithValue[] = {
    "-m",         "--model", "--kv",   "-c",     "--ctx-size",       "--ctx",    "-np",
    "--parallel", "-t",      "--host", "--port", "--slot-save-path", "--server", "--threads"};
constexpr std::string_view kOwnFlags[] = {"-h", "--help"};

struct Refused {
  std::vector<std::string_view> names;
  const char* reason;
};

const Refused kAgainstTheCache[] = {
    {{"-ctk", "--cache-type-k", "-ctv", "--cache-type-v"},
     "the cache packs keys and values itself; --kv chooses how"},
    {{"-nkvo", "--no-kv-offload"}, "the cache lies on the plugin's device"},
    {{"-ngl", "--gpu-layers", "--n-gpu-layers"}, "every layer's cache lies on the plugin's device"},
    {{"-dev", "--device"}, "the cache lies on the plugin's device"},
    {{"-sm", "--split-mode"}, "there is one device"},
};
const Refused kWithSlots[] = {
    {{"--ssl-key-file", "--ssl-cert-file"},
     "with --slot-save-path the server stands behind `oscar serve`, which speaks plain HTTP"},
};

std::string_view name_of(std::string_view argument) {
  return argument.substr(0, argument.find('='));
}

bool is_one_of(std::string_view name, const auto& names) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

void refuse(const std::vector<std::string>& options, const auto& list) {
  for (const Refused& refused : list) {
    for (const std::string& option : options) {
      if (!is_one_of(name_of(option), refused.names)) continue;
      throw Error(ErrorCode::kUnsupported,
                  option + " does not go with `oscar serve`: " + refused.reason);
    }
  }
}

}  // namespace

std::vector<std::string> with_server_options_last(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments.front() != "serve") return arguments;
  std::vector<std::string> own = {arguments.front()}, others;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      others.insert(others.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                    arguments.end());
      break;
    }
    const std::string_view name = name_of(argument);
    const bool with_value = is_one_of(name, kOwnWithValue);
    if (with_value || is_one_of(name, kOwnFlags)) {
      // The parser takes -np for -n p.
      own.push_back(name == "-np" ? "--parallel" + argument.substr(3) : argument);
      if (with_value && name.size() == argument.size() && i + 1 < arguments.size()) {
        own.push_back(arguments[++i]);
      }
    } else {
      others.push_back(argument);
    }
  }
  if (!others.empty()) {
    own.push_back("--");
    own.insert(own.end(), others.begin(), others.end());
  }
  return own;
}

void check_server_options(const std::vector<std::string>& options, bool packed_cache,
                          bool saves_slots) {
  if (packed_cache) {
    refuse(options, kAgainstTheCache);
    const std::string flash = option_value(options, {"-fa", "--flash-attn"});
    if (flash == "off" || flash == "0" || flash == "disabled") {
      throw Error(ErrorCode::kUnsupported,
                  "-fa " + flash +
                      " does not go with `oscar serve`: the cache computes attention "
                      "itself; leave it at auto or on");
    }
  }
  if (saves_slots) refuse(options, kWithSlots);
}

std::string option_value(const std::vector<std::string>& options,
                         const std::vector<std::string>& names) {
  std::string value;
  for (std::size_t i = 0; i < options.size(); ++i) {
    const std::string_view name = name_of(options[i]);
    if (!is_one_of(name, names)) continue;
    if (name.size() < options[i].size()) {
      value = options[i].substr(name.size() + 1);
    } else if (i + 1 < options.size()) {
      value = options[i + 1];
    }
  }
  return value;
}

bool has_option(const std::vector<std::string>& options, const std::vector<std::string>& names) {
  return std::any_of(options.begin(), options.end(),
                     [&](const std::string& option) { return is_one_of(name_of(option), names); });
}

}  // namespace oscar::tool

#include "serve_arguments.h"

#include <algorithm>
#include <cstdlib>
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

// An option that is refused, and the variable that llama-server reads it from (common/arg.cpp).
struct Refused {
  std::vector<std::string_view> names;
  const char* variable;
  const char* reason;
};

constexpr const char* kPacksItself = "the cache packs keys and values itself; --kv chooses how";
constexpr const char* kOneDevice = "the cache lies on the plugin's device";
constexpr const char* kOneModel = "-m names the model that the cache is for";

constexpr const char* kPlainHttp =
    "with --slot-save-path the server stands behind `oscar serve`, which speaks plain HTTP";

const Refused kAgainstTheCache[] = {
    {{"-ctk", "--cache-type-k"}, "LLAMA_ARG_CACHE_TYPE_K", kPacksItself},
    {{"-ctv", "--cache-type-v"}, "LLAMA_ARG_CACHE_TYPE_V", kPacksItself},
    {{"-nkvo", "--no-kv-offload"}, "LLAMA_ARG_NO_KV_OFFLOAD", kOneDevice},
    {{"-ngl", "--gpu-layers", "--n-gpu-layers"},
     "LLAMA_ARG_N_GPU_LAYERS",
     "every layer's cache lies on the plugin's device"},
    {{"-dev", "--device"}, "LLAMA_ARG_DEVICE", kOneDevice},
    {{"-sm", "--split-mode"}, "LLAMA_ARG_SPLIT_MODE", "there is one device"},
};
// Options of these names are `oscar serve`'s own, or would choose another model.
const Refused kSetHere[] = {
    {{}, "LLAMA_ARG_MODEL", kOneModel},
    {{"-mu", "--model-url"}, "LLAMA_ARG_MODEL_URL", kOneModel},
    {{"-dr", "--docker-repo"}, "LLAMA_ARG_DOCKER_REPO", kOneModel},
    {{"-hf", "-hfr", "--hf-repo"}, "LLAMA_ARG_HF_REPO", kOneModel},
    {{"-hff", "--hf-file"}, "LLAMA_ARG_HF_FILE", kOneModel},
    {{}, "LLAMA_ARG_CTX_SIZE", "-c says how much context there is"},
    {{}, "LLAMA_ARG_N_PARALLEL", "-np says how many slots there are"},
    {{}, "LLAMA_ARG_HOST", "--host says where to listen"},
    {{}, "LLAMA_ARG_PORT", "--port says where to listen"},
};
const Refused kWithSlots[] = {
    {{"--ssl-key-file"}, "LLAMA_ARG_SSL_KEY_FILE", kPlainHttp},
    {{"--ssl-cert-file"}, "LLAMA_ARG_SSL_CERT_FILE", kPlainHttp},
};
// Fine where they are on.
const Refused kNotOff[] = {
    {{"-fa", "--flash-attn"},
     "LLAMA_ARG_FLASH_ATTN",
     "the cache computes attention itself; leave it at auto or on"},
    {{}, "LLAMA_ARG_KV_OFFLOAD", kOneDevice},
};

// As llama-server reads it, which takes --cache_type_k for --cache-type-k.
std::string name_of(std::string_view argument) {
  std::string name(argument.substr(0, argument.find('=')));
  if (name.rfind("--", 0) == 0) std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

bool is_one_of(std::string_view name, const auto& names) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

[[noreturn]] void fail(const std::string& what, const Refused& refused) {
  throw Error(ErrorCode::kUnsupported, what + " does not go with `oscar serve`: " + refused.reason);
}

[[noreturn]] void fail_variable(const char* value, const Refused& refused) {
  fail(std::string("the environment's ") + refused.variable + "=" + value, refused);
}

void refuse(const std::vector<std::string>& options, const auto& list) {
  for (const Refused& refused : list) {
    for (const std::string& option : options) {
      if (is_one_of(name_of(option), refused.names)) fail(option, refused);
    }
    if (const char* value = std::getenv(refused.variable)) fail_variable(value, refused);
  }
}

bool is_off(std::string_view value) {
  return value == "off" || value == "0" || value == "disabled" || value == "false";
}

void refuse_off(const std::vector<std::string>& options) {
  for (const Refused& refused : kNotOff) {
    const std::string value = option_value(options, {refused.names.begin(), refused.names.end()});
    if (is_off(value)) fail(std::string(refused.names.front()) + " " + value, refused);
    const char* set = std::getenv(refused.variable);
    if (set != nullptr && is_off(set)) fail_variable(set, refused);
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
    const std::string name = name_of(argument);
    const bool with_value = is_one_of(name, kOwnWithValue);
    if (with_value || is_one_of(name, kOwnFlags)) {
      // The parser takes -np for -n p.
      own.push_back((name == "-np" ? "--parallel" : name) + argument.substr(name.size()));
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
  refuse(options, kSetHere);
  if (packed_cache) {
    refuse(options, kAgainstTheCache);
    refuse_off(options);
  }
  if (saves_slots) refuse(options, kWithSlots);
}

std::string option_value(const std::vector<std::string>& options,
                         const std::vector<std::string>& names) {
  std::string value;
  for (std::size_t i = 0; i < options.size(); ++i) {
    const std::string name = name_of(options[i]);
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

bool is_on(const std::vector<std::string>& options, const std::vector<std::string>& names,
           const char* variable) {
  const char* set = std::getenv(variable);
  const std::string_view value = set == nullptr ? "" : set;
  return has_option(options, names) || value == "on" || value == "1" || value == "enabled" ||
         value == "true";
}

}  // namespace oscar::tool

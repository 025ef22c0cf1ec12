#include "config.h"

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "calibrate/methods.h"
#include "log.h"

namespace oscar::ggml_plugin {
namespace {

constexpr const char* kDefaultSpec = "quarot";
constexpr const char* kExactSpec = "naive:k16v16";

std::mutex config_mutex;
std::shared_ptr<const Config> config = std::make_shared<Config>();

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// A whole number in [low, high] from the environment; nothing when the variable is not set.
std::optional<int> environment_number(const char* name, int low, int high) {
  const std::string text = environment(name);
  if (text.empty()) return std::nullopt;
  int value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name) + " is " + in_quotes(text) + "; it must be a whole number from " +
                    std::to_string(low) + " to " + std::to_string(high));
  }
  return value;
}

void use_spec(const std::string& text, Config* result) {
  result->spec = parse_kv_spec(text.empty() ? kExactSpec : text);
  result->artefact = nullptr;
  switch (result->spec.kind) {
    case KvSpec::Kind::kHostType:
      throw Error(ErrorCode::kInvalidArgument,
                  "'" + text +
                      "' is a cache type of llama.cpp itself; give a method or an "
                      "artefact, or start without GGML_BACKEND_PATH");
    case KvSpec::Kind::kFile: {
      if (!std::filesystem::exists(result->spec.file)) {
        throw Error(ErrorCode::kNotFound, in_quotes(result->spec.file) + " is no method (" +
                                              method_names() + ") and no such file");
      }
      Artefact artefact = load_artefact(result->spec.file);
      calibrate::apply_kv_spec(result->spec, &artefact);
      result->artefact = std::make_shared<const Artefact>(std::move(artefact));
      break;
    }
    case KvSpec::Kind::kMethod:
      if (calibrate::needs_statistics(result->spec.method)) {
        throw Error(ErrorCode::kInvalidArgument,
                    std::string("method '") + method_name(result->spec.method) +
                        "' needs an artefact of the model: make one with 'oscar calibrate' and "
                        "give its file");
      }
      break;
  }
}

}  // namespace

void configure_from_environment() {
  auto fresh = std::make_shared<Config>();
  // Each by itself: a bad one leaves the others in force.
  const auto number = [&fresh](const char* name, int low, int high) -> std::optional<int> {
    try {
      return environment_number(name, low, high);
    } catch (const Error& error) {
      std::string& said = fresh->environment_error;
      said += (said.empty() ? "" : "; ") + std::string(error.what());
      return std::nullopt;
    }
  };
  // −1 is for programs that take refusals from oscar_last_error and print them themselves.
  set_log_level(number("OSCAR_LOG", -1, 2).value_or(1));
  fresh->copied_sequences = number("OSCAR_COPIES", 1, 256);
  fresh->allow_partial = number("OSCAR_PARTIAL", 0, 1).value_or(0) == 1;
  try {
    const std::string spec = environment("OSCAR_KV");
    use_spec(spec.empty() ? kDefaultSpec : spec, fresh.get());
  } catch (const Error& error) {
    fresh->spec_error = error.what();
  }
  const std::lock_guard lock(config_mutex);
  config = std::move(fresh);
}

void configure(const std::string& kv_spec) {
  auto fresh = std::make_shared<Config>(*current_config());
  if (!fresh->environment_error.empty())
    throw Error(ErrorCode::kInvalidArgument, fresh->environment_error);
  use_spec(kv_spec, fresh.get());
  fresh->spec_error.clear();
  const std::lock_guard lock(config_mutex);
  config = std::move(fresh);
}

std::shared_ptr<const Config> current_config() {
  const std::lock_guard lock(config_mutex);
  return config;
}

}  // namespace oscar::ggml_plugin

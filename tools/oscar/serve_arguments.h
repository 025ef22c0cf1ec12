// Which of `oscar serve`'s arguments are its own, and which are llama-server's.
#pragma once

#include <string>
#include <vector>

namespace oscar::tool {

// The program's arguments with those of `serve` that are not its own moved behind "--", in their
// order: a parser that knows nothing of llama-server's options can then read the rest. Other
// commands' arguments stay as they are.
std::vector<std::string> with_server_options_last(const std::vector<std::string>& arguments);

// Throws Error(kUnsupported) naming the first of llama-server's options that would take the cache
// away from the plugin, or that `oscar serve` sets itself. llama-server reads options from
// variables LLAMA_ARG_* too: the same ones are refused there, with their values.
void check_server_options(const std::vector<std::string>& options, bool packed_cache,
                          bool saves_slots);

// The last of the options with one of these names; "" when there is none.
std::string option_value(const std::vector<std::string>& options,
                         const std::vector<std::string>& names);
bool has_option(const std::vector<std::string>& options, const std::vector<std::string>& names);

// Of a switch that llama-server also reads from a variable.
bool is_on(const std::vector<std::string>& options, const std::vector<std::string>& names,
           const char* variable);

}  // namespace oscar::tool

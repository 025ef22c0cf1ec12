// What the plugin says, on standard error, one line each, prefixed "oscar: ".
#pragma once

#include <string>

namespace oscar::ggml_plugin {

// Printed when the level that OSCAR_LOG sets is at least `level`.
void log_line(int level, const std::string& line);
void set_log_level(int level);

// The reason why something was not done: kept for take_last_error(), and printed unless the level
// is −1 in a program that asked for that function.
void log_refusal(const std::string& line);
void set_host_takes_refusals();

bool any_refusal();  // since the plugin was loaded

// The last refusal, "" if none since the last call. The text stays valid until the next call.
const char* take_last_error();

}  // namespace oscar::ggml_plugin

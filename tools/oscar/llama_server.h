// llama.cpp's server: where it lies, and whether it takes our plugin.
#pragma once

#include <string>

namespace oscar::tool {

// `forced`, or llama-server beside the llama.cpp libraries that this program runs with. Throws
// Error(kNotFound) naming where it was looked for.
std::string find_llama_server(const std::string& forced);

// Asks it for its devices with the plugin loaded. Throws Error(kMismatch) with the plugin's reason
// (another version of ggml names both) or with what is missing.
void check_llama_server(const std::string& server, const std::string& plugin);

}  // namespace oscar::tool

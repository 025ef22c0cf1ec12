// Sizes of memory: as people write them, and as the machine has them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace oscar::tool {

// "1536", "512M", "2G", "1.5GiB": K, M, G, T are powers of 1024. Throws Error(kInvalidArgument).
std::uint64_t parse_memory_size(const std::string& option, const std::string& text);

// What this process may still take: the system's available memory, or less where a control group
// limits it. 0: not known.
std::uint64_t available_memory();

// OSCAR_COPIES, as the plugin reads it. Throws Error(kInvalidArgument).
std::optional<int> copied_sequences_from_environment();

}  // namespace oscar::tool

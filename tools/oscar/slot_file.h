// Slot files of `oscar serve`: what llama-server saved, followed by what it was saved under and a
// checksum over all, so that a file that does not fit is known before a slot is touched.
//
//   llama.cpp's bytes | identity, JSON | footer 64 B:
//   u64 bytes of llama.cpp | u64 bytes of the identity | XXH3-128 of both, 32 hex digits |
//   "OSCARSLT" | u32 format version | u32 0
//
// llama.cpp stops reading where its own bytes end, so llama-server takes the whole file.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace oscar::tool {

inline constexpr std::uint32_t kSlotFileVersion = 2;  // grows with that of state rows too

// Flat object of texts and numbers: what a slot file must agree with.
using SlotIdentity = nlohmann::ordered_json;

// Appends identity and footer to what llama-server wrote to `temporary`, makes it durable and
// renames it to `target`: others see the old file or the whole new one. Throws Error(kIo).
void seal_slot_file(const std::string& temporary, const std::string& target,
                    const SlotIdentity& identity);

// Throws Error(kNotFound | kCorrupt | kMismatch) in one line that names the file by `name` and the
// first difference: no such file, cut short, damaged, version, a field of the identity, or more
// tokens than a slot holds.
void check_slot_file(const std::string& path, const std::string& name, const SlotIdentity& identity,
                     std::int64_t slot_tokens);

}  // namespace oscar::tool

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
#include <vector>

namespace oscar::tool {

inline constexpr std::uint32_t kSlotFileVersion = 2;  // grows with that of state rows too

// Flat object of texts and numbers: what a slot file must agree with.
using SlotIdentity = nlohmann::ordered_json;

// Appends identity and footer to what llama-server wrote to `temporary`, makes it durable and
// renames it to `target`: others see the old file or the whole new one. Throws Error(kIo).
void seal_slot_file(const std::string& temporary, const std::string& target,
                    const SlotIdentity& identity);

// Throws Error(kNotFound | kIo | kCorrupt | kMismatch) in one line that names the file by `name`
// and the first difference: no such file, not a regular file, cut short, damaged, version, a field
// of the identity, or more tokens than a slot holds.
void check_slot_file(const std::string& path, const std::string& name, const SlotIdentity& identity,
                     std::int64_t slot_tokens);

// An empty file of a name that no save has yet, for llama-server to write to. It is locked while
// the object lives, which tells other servers on the folder that somebody still writes it, and gone
// with the object unless it was renamed.
class PartialSlotFile {
 public:
  explicit PartialSlotFile(const std::string& folder);  // throws Error(kIo)
  ~PartialSlotFile();
  PartialSlotFile(const PartialSlotFile&) = delete;
  PartialSlotFile& operator=(const PartialSlotFile&) = delete;
  const std::string& name() const { return name_; }
  const std::string& path() const { return path_; }

 private:
  std::string name_, path_;
  int fd_ = -1;
};

bool is_partial_name(const std::string& name);

// Throws Error(kNotFound | kIo) when slots cannot be saved there.
void check_slot_folder(const std::string& folder);

// Removes what saves that were cut short have left; returns the paths. What a process still holds
// stays.
std::vector<std::string> remove_abandoned_saves(const std::string& folder);

}  // namespace oscar::tool

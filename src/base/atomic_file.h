// Writing a file so that others see the old bytes or all of the new ones, never a part.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace oscar {

// Writes to a temporary name in the target's folder; commit() makes it durable and renames it over
// the target. Without commit the temporary file is removed and the target is untouched. A symbolic
// link is followed, whether or not its target exists; an existing target that is no regular file is
// refused; an existing target's permissions are kept. Not thread-safe.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);  // throws Error(kIo | kNotFound)
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Throws Error(kIo) in one line that names the target, the reason (disk full, ...) and how far it
  // got.
  void write(const void* bytes, std::uint64_t num_bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit();

 private:
  void discard() noexcept;

  std::string path_;       // as given
  std::string target_;     // links resolved
  std::string temporary_;  // empty: committed or discarded
  int fd_ = -1;
  std::uint64_t num_written_ = 0;
};

void write_file_atomically(const std::string& path, std::string_view bytes);

// Removes what uncommitted AtomicFiles of this process have written so far. Safe in a signal
// handler that ends the process.
void remove_temporary_files() noexcept;

// All bytes to a descriptor; `name` and `already_written` are for the message. Throws Error(kIo).
void write_all(int fd, const void* bytes, std::uint64_t num_bytes, const std::string& name,
               std::uint64_t already_written);

}  // namespace oscar

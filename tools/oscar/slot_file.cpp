#include "slot_file.h"

#include <fcntl.h>
#include <llama.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "base/text.h"

namespace oscar::tool {
namespace {

namespace fs = std::filesystem;

const std::string kPartialPrefix = "oscar-part-";

constexpr char kMagic[8] = {'O', 'S', 'C', 'A', 'R', 'S', 'L', 'T'};

struct Footer {
  std::uint64_t content_bytes = 0, identity_bytes = 0;
  char hash[32] = {};
  char magic[8] = {};
  std::uint32_t version = kSlotFileVersion, reserved = 0;
};
static_assert(sizeof(Footer) == 64);

struct StateHeader {
  std::uint32_t magic, version, num_tokens;
};

[[noreturn]] void fail_io(const std::string& path, const char* what) {
  throw Error(ErrorCode::kIo, path + ": cannot " + what + ": " + std::strerror(errno));
}

void sync(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC);
  if (fd < 0) fail_io(path, "open");
  const int status = ::fsync(fd);
  ::close(fd);
  if (status != 0) fail_io(path, "make durable");
}

std::string text_of(const SlotIdentity& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void check_identity(const std::string& slot_file, std::string_view text, const SlotIdentity& here) {
  const SlotIdentity saved = SlotIdentity::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!saved.is_object()) throw Error(ErrorCode::kCorrupt, slot_file + " names no model");
  for (const auto& [field, value] : here.items()) {
    if (saved.contains(field) && saved[field] == value) continue;
    throw Error(ErrorCode::kMismatch,
                slot_file + " was saved with " + field + " " +
                    in_quotes(saved.contains(field) ? text_of(saved[field]) : "unknown") +
                    ", this server has " + in_quotes(text_of(value)));
  }
}

}  // namespace

void seal_slot_file(const std::string& temporary, const std::string& target,
                    const SlotIdentity& identity) {
  const std::string text = identity.dump();
  Footer footer;
  {
    const MappedFile content(temporary);
    Hasher hasher;
    hasher.update(content.bytes().data(), content.bytes().size());
    hasher.update(text.data(), text.size());
    footer.content_bytes = content.bytes().size();
    footer.identity_bytes = text.size();
    std::memcpy(footer.hash, hasher.hex().data(), sizeof footer.hash);
    std::memcpy(footer.magic, kMagic, sizeof kMagic);
  }
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd < 0) fail_io(temporary, "open");
  try {
    write_all(fd, text.data(), text.size(), temporary, footer.content_bytes);
    write_all(fd, &footer, sizeof footer, temporary, footer.content_bytes + text.size());
  } catch (...) {
    ::close(fd);
    throw;
  }
  ::close(fd);
  sync(temporary, O_RDONLY);
  if (::rename(temporary.c_str(), target.c_str()) != 0) fail_io(target, "rename to");
  sync(fs::path(target).parent_path().string(), O_RDONLY | O_DIRECTORY);
}

void check_slot_file(const std::string& path, const std::string& name, const SlotIdentity& identity,
                     std::int64_t slot_tokens) {
  const std::string slot_file = "slot file " + in_quotes(name);
  std::error_code reason;
  const fs::file_status status = fs::status(path, reason);
  if (status.type() == fs::file_type::not_found) {
    throw Error(ErrorCode::kNotFound, slot_file + " does not exist");
  }
  if (reason) throw Error(ErrorCode::kIo, slot_file + " cannot be read: " + reason.message());
  if (!fs::is_regular_file(status)) {
    throw Error(ErrorCode::kMismatch, slot_file + " is not a regular file");
  }
  const MappedFile file(path);
  const std::span<const std::uint8_t> bytes = file.bytes();
  Footer footer;
  const bool has_footer = bytes.size() >= sizeof footer;
  if (has_footer) std::memcpy(&footer, bytes.data() + bytes.size() - sizeof footer, sizeof footer);
  if (!has_footer || std::memcmp(footer.magic, kMagic, sizeof kMagic) != 0) {
    throw Error(ErrorCode::kCorrupt,
                slot_file + " is truncated, or was not saved by `oscar serve`: its " +
                    std::to_string(bytes.size()) + " bytes do not end in the mark of one");
  }
  if (footer.version != kSlotFileVersion) {
    throw Error(ErrorCode::kMismatch, slot_file + " has format version " +
                                          std::to_string(footer.version) + ", this server has " +
                                          std::to_string(kSlotFileVersion));
  }
  const std::uint64_t body = bytes.size() - sizeof footer;
  if (footer.identity_bytes > body || footer.content_bytes != body - footer.identity_bytes) {
    throw Error(ErrorCode::kCorrupt, slot_file + " is damaged: it says that it holds " +
                                         std::to_string(footer.content_bytes) + " + " +
                                         std::to_string(footer.identity_bytes) +
                                         " bytes, and has " + std::to_string(body));
  }
  if (footer.reserved != 0) {
    throw Error(ErrorCode::kCorrupt, slot_file + " is damaged: its last four bytes say " +
                                         std::to_string(footer.reserved) + ", not 0");
  }
  const std::string hash = hash_hex(bytes.data(), body);
  if (std::memcmp(hash.data(), footer.hash, sizeof footer.hash) != 0) {
    throw Error(ErrorCode::kCorrupt, slot_file + " is damaged: its checksum is " +
                                         in_quotes(std::string(footer.hash, sizeof footer.hash)) +
                                         ", that of its bytes " + in_quotes(hash));
  }
  check_identity(
      slot_file,
      {reinterpret_cast<const char*>(bytes.data()) + footer.content_bytes, footer.identity_bytes},
      identity);
  StateHeader header{};
  if (footer.content_bytes >= sizeof header) std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != LLAMA_STATE_SEQ_MAGIC || header.version != LLAMA_STATE_SEQ_VERSION) {
    throw Error(ErrorCode::kMismatch, slot_file + " has llama.cpp's state version " +
                                          std::to_string(header.version) + ", this server has " +
                                          std::to_string(LLAMA_STATE_SEQ_VERSION));
  }
  if (slot_tokens > 0 && static_cast<std::int64_t>(header.num_tokens) > slot_tokens) {
    throw Error(ErrorCode::kMismatch, slot_file + " holds " + std::to_string(header.num_tokens) +
                                          " tokens, a slot of this server " +
                                          std::to_string(slot_tokens));
  }
}

PartialSlotFile::PartialSlotFile(const std::string& folder) {
  static std::atomic<int> num_saves{0};
  for (;;) {
    name_ = kPartialPrefix + std::to_string(::getpid()) + "-" + std::to_string(num_saves++);
    path_ = (fs::path(folder) / name_).string();
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd_ < 0 && errno == EEXIST) continue;  // another machine's or container's process
    if (fd_ < 0) fail_io(path_, "create");
    // Where the file system knows no locks, it stays without.
    struct stat status {};
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno != EWOULDBLOCK) return;
    if (::fstat(fd_, &status) == 0 && status.st_nlink > 0) return;
    ::close(fd_);  // another server took it for abandoned before it was locked
  }
}

PartialSlotFile::~PartialSlotFile() {
  ::unlink(path_.c_str());  // renamed: no file has the name
  ::close(fd_);
}

bool is_partial_name(const std::string& name) { return name.rfind(kPartialPrefix, 0) == 0; }

void check_slot_folder(const std::string& folder) {
  const std::string option = "--slot-save-path " + in_quotes(folder);
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    throw Error(ErrorCode::kNotFound, option + " is no folder; create it first");
  }
  try {
    const PartialSlotFile probe(folder);
  } catch (const Error& error) {
    throw Error(ErrorCode::kIo, option + " cannot be written to: " + error.what());
  }
}

std::vector<std::string> remove_abandoned_saves(const std::string& folder) {
  std::vector<std::string> removed;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string path = entry.path().string();
    if (!is_partial_name(entry.path().filename().string())) continue;
    const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) continue;
    struct stat status {};
    if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
        ::flock(fd, LOCK_EX | LOCK_NB) == 0 && ::unlink(path.c_str()) == 0) {
      removed.push_back(path);
    }
    ::close(fd);
  }
  return removed;
}

}  // namespace oscar::tool

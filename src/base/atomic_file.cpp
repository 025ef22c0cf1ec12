#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/text.h"

namespace oscar {
namespace {

constexpr mode_t kNewFileMode = 0666;              // less the umask
constexpr std::uint64_t kMaxWriteBytes = 1 << 30;  // Linux writes at most 2 GiB − 4 KiB a call
constexpr int kMaxNameAttempts = 1000;
constexpr int kMaxLinks = 40;  // as Linux follows

// Names of temporary files that exist, for remove_temporary_files(). More than these at once are
// not remembered.
struct TemporaryName {
  std::atomic<bool> taken{false};
  std::atomic<bool> complete{false};
  char name[4096];
};
TemporaryName temporary_names[8];

void remember(const std::string& name) {
  for (TemporaryName& slot : temporary_names) {
    if (name.size() >= sizeof slot.name || slot.taken.exchange(true)) continue;
    std::memcpy(slot.name, name.c_str(), name.size() + 1);
    slot.complete = true;
    return;
  }
}

void forget(const std::string& name) {
  for (TemporaryName& slot : temporary_names) {
    if (!slot.complete || name != slot.name) continue;
    slot.complete = false;
    slot.taken = false;
    return;
  }
}

[[noreturn]] void fail(const std::string& path, const std::string& reason) {
  throw Error(ErrorCode::kIo, "cannot write " + in_quotes(path) + ": " + reason);
}

std::string reason_of(int error) {
  std::string reason = std::generic_category().message(error);
  if (error == ENOSPC || error == EDQUOT) reason += "; free some space or choose another folder";
  return reason;
}

// Makes a new file that nobody else has, in `folder`. The short name fits wherever the target's
// name fits.
int create_temporary(const std::filesystem::path& folder, mode_t mode, std::string* name) {
  static std::atomic<std::uint64_t> counter{0};
  for (int attempt = 0; attempt < kMaxNameAttempts; ++attempt) {
    *name = (folder / (".oscar-" + std::to_string(::getpid()) + "-" +
                       std::to_string(counter.fetch_add(1)) + ".tmp"))
                .string();
    const int fd = ::open(name->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd >= 0 || errno != EEXIST) return fd;
  }
  return -1;
}

// Through links, so that the link stays and its target is replaced or made.
std::string through_links(const std::string& path) {
  namespace fs = std::filesystem;
  fs::path target = path;
  std::error_code error;
  for (int i = 0; i < kMaxLinks && fs::is_symlink(target, error); ++i) {
    const fs::path next = fs::read_symlink(target, error);
    if (error) fail(path, error.message());
    target = next.is_absolute() ? next : target.parent_path() / next;
  }
  if (fs::is_symlink(target, error)) fail(path, "its links lead nowhere; give a file");
  return target.string();
}

}  // namespace

void remove_temporary_files() noexcept {
  for (const TemporaryName& slot : temporary_names) {
    if (slot.complete) ::unlink(slot.name);
  }
}

void write_all(int fd, const void* bytes, std::uint64_t num_bytes, const std::string& name,
               std::uint64_t already_written) {
  const char* next = static_cast<const char*>(bytes);
  std::uint64_t left = num_bytes;
  while (left > 0) {
    const ssize_t written = ::write(fd, next, std::min(left, kMaxWriteBytes));
    if (written < 0) {
      if (errno == EINTR) continue;
      const int error = errno;
      fail(name, reason_of(error) + " (after " +
                     std::to_string(already_written + (num_bytes - left)) + " bytes)");
    }
    next += written;
    left -= static_cast<std::uint64_t>(written);
  }
}

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  namespace fs = std::filesystem;
  if (path.empty()) fail(path, "the name is empty");
  target_ = through_links(path);
  mode_t mode = kNewFileMode;
  struct stat status;
  const bool exists = ::stat(target_.c_str(), &status) == 0;
  if (exists) {
    if (S_ISDIR(status.st_mode)) fail(path, "it is a folder; give a file");
    if (!S_ISREG(status.st_mode)) fail(path, "it exists and is not a regular file");
    if (::access(target_.c_str(), W_OK) != 0) fail(path, reason_of(errno));
    mode = status.st_mode & 07777;
  }
  fs::path folder = fs::path(target_).parent_path();
  if (folder.empty()) folder = ".";
  std::string name;
  fd_ = create_temporary(folder, mode, &name);
  if (fd_ < 0) {
    const int code = errno;
    const bool missing = code == ENOENT || code == ENOTDIR;
    throw Error(missing ? ErrorCode::kNotFound : ErrorCode::kIo,
                "cannot write " + in_quotes(path) + ": folder " + in_quotes(folder.string()) +
                    ": " + reason_of(code));
  }
  temporary_ = name;
  remember(temporary_);
  if (exists) ::fchmod(fd_, mode);  // open() took the umask off; a failure leaves the stricter mode
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
    forget(temporary_);
  }
  temporary_.clear();
}

void AtomicFile::write(const void* bytes, std::uint64_t num_bytes) {
  if (fd_ < 0) fail(path_, "it is already committed");
  write_all(fd_, bytes, num_bytes, path_, num_written_);
  num_written_ += num_bytes;
}

void AtomicFile::commit() {
  if (fd_ < 0) fail(path_, "it is already committed");
  // EINVAL: the file system knows no fsync.
  if (::fsync(fd_) != 0 && errno != EINVAL) {
    const int error = errno;
    discard();
    fail(path_, reason_of(error));
  }
  const int closed = ::close(fd_);
  fd_ = -1;
  if (closed != 0 || std::rename(temporary_.c_str(), target_.c_str()) != 0) {
    const int error = errno;
    discard();
    fail(path_, reason_of(error));
  }
  forget(temporary_);
  temporary_.clear();
  // The new name is durable once the folder is; where folders cannot be synced the rename stands
  // all the same.
  const std::filesystem::path folder = std::filesystem::path(target_).parent_path();
  const int folder_fd =
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_fd >= 0) {
    ::fsync(folder_fd);
    ::close(folder_fd);
  }
}

void write_file_atomically(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

}  // namespace oscar

#include "eval/byte_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace oscar::eval {
namespace {

constexpr std::size_t kBufferBytes = 1 << 16;

}  // namespace

ByteReader::ByteReader(const std::string& path) : path_(path) {
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO has no end
  if (fd_ < 0) {
    const ErrorCode code = errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo;
    throw Error(code, path + ": cannot open: " + std::strerror(errno));
  }
  struct stat status {};
  if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd_);
    throw Error(ErrorCode::kIo, path + ": is no regular file");
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
  buffer_.resize(kBufferBytes);
}

ByteReader::~ByteReader() { ::close(fd_); }

bool ByteReader::read(void* bytes, std::uint64_t num_bytes) {
  if (num_bytes > remaining()) return false;
  char* out = static_cast<char*>(bytes);
  while (num_bytes > 0) {
    if (position_ < buffer_start_ || position_ >= buffer_end_) {
      const ssize_t got =
          ::pread(fd_, buffer_.data(), buffer_.size(), static_cast<off_t>(position_));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        const char* reason = got < 0 ? std::strerror(errno) : "became shorter while it was read";
        throw Error(ErrorCode::kIo, path_ + ": cannot read: " + reason);
      }
      buffer_start_ = position_;
      buffer_end_ = position_ + static_cast<std::uint64_t>(got);
    }
    const std::uint64_t here = std::min(num_bytes, buffer_end_ - position_);
    std::memcpy(out, buffer_.data() + (position_ - buffer_start_), here);
    out += here;
    position_ += here;
    num_bytes -= here;
  }
  return true;
}

bool ByteReader::skip(std::uint64_t num_bytes) {
  if (num_bytes > remaining()) return false;
  position_ += num_bytes;
  return true;
}

}  // namespace oscar::eval

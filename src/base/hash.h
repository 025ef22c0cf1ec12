// XXH3: a fast fingerprint of bytes. Tells files apart and finds damage; it is no protection
// against forgery.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace oscar {

// 32 lower-case hex digits, the canonical (big-endian) form that `xxh128sum` prints.
std::string hash_hex(const void* bytes, std::uint64_t num_bytes);

// XXH3-64 of a few bytes, for checksums.
std::uint64_t hash_64(const void* bytes, std::uint64_t num_bytes, std::uint64_t seed = 0);

// hash_hex over bytes that come in pieces. Not thread-safe.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  void update(const void* bytes, std::uint64_t num_bytes);
  std::string hex() const;  // of all bytes so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace oscar

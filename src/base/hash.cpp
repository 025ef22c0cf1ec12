#include "base/hash.h"

#define XXH_INLINE_ALL  // no library to link, on any target
#include <xxhash.h>

#include <new>

namespace oscar {
namespace {

std::string to_hex(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const unsigned char byte : canonical.digest) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

}  // namespace

std::string hash_hex(const void* bytes, std::uint64_t num_bytes) {
  return to_hex(XXH3_128bits(bytes, num_bytes));
}

std::uint64_t hash_64(const void* bytes, std::uint64_t num_bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes, num_bytes, seed);
}

struct Hasher::State {
  XXH3_state_t* xxh = XXH3_createState();
  State() {
    if (xxh == nullptr) throw std::bad_alloc();
    XXH3_128bits_reset(xxh);
  }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Hasher::Hasher() : state_(std::make_unique<State>()) {}
Hasher::~Hasher() = default;

void Hasher::update(const void* bytes, std::uint64_t num_bytes) {
  XXH3_128bits_update(state_->xxh, bytes, num_bytes);
}

std::string Hasher::hex() const { return to_hex(XXH3_128bits_digest(state_->xxh)); }

}  // namespace oscar

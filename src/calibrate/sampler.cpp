#include "calibrate/sampler.h"

#include <algorithm>

namespace oscar::calibrate {
namespace {

// splitmix64's output function: a bijection of 64-bit words that passes for random.
std::uint64_t mix(std::uint64_t word) {
  word += 0x9e3779b97f4a7c15u;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
  return word ^ (word >> 31);
}

}  // namespace

Sampler::Sampler(std::uint64_t seed, std::int64_t capacity, std::int64_t num_kept)
    : seed_(mix(seed)), capacity_(capacity), num_kept_(std::min(num_kept, capacity)) {}

std::int64_t Sampler::slot(std::int64_t index) const {
  if (index < capacity_) return index;
  // Token i of the rest replaces one of the first i + 1 places; places past the sample are misses.
  // The modulo's bias is index / 2⁶⁴.
  const auto seen = static_cast<std::uint64_t>(index - num_kept_ + 1);
  const auto place =
      static_cast<std::int64_t>(mix(seed_ ^ static_cast<std::uint64_t>(index)) % seen);
  return place < capacity_ - num_kept_ ? num_kept_ + place : -1;
}

}  // namespace oscar::calibrate

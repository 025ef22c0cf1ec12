// Codes of 2, 3 or 4 bits in a row of bytes without gaps, low bits first.
#pragma once

#include <cstdint>

namespace oscar::methods {

// num_codes: a multiple of 8, so that every row ends with a byte.
constexpr std::int64_t packed_bytes(std::int64_t num_codes, int bits) {
  return num_codes * bits / 8;
}

inline void pack_codes(const std::uint8_t* codes, std::int64_t num_codes, int bits,
                       std::uint8_t* dst) {
  std::uint32_t buffer = 0;
  int filled = 0;
  for (std::int64_t i = 0; i < num_codes; ++i) {
    buffer |= std::uint32_t{codes[i]} << filled;
    filled += bits;
    while (filled >= 8) {
      *dst++ = static_cast<std::uint8_t>(buffer);
      buffer >>= 8;
      filled -= 8;
    }
  }
}

inline void unpack_codes(const std::uint8_t* src, std::int64_t num_codes, int bits,
                         std::uint8_t* codes) {
  const std::uint32_t mask = (1u << bits) - 1;
  // Eight codes are `bits` whole bytes.
  for (std::int64_t i = 0; i < num_codes; i += 8) {
    std::uint32_t buffer = 0;
    for (int byte = 0; byte < bits; ++byte) buffer |= std::uint32_t{*src++} << (8 * byte);
    for (int k = 0; k < 8; ++k)
      codes[i + k] = static_cast<std::uint8_t>(buffer >> (bits * k) & mask);
  }
}

}  // namespace oscar::methods

// 64-bit size arithmetic for untrusted and for large sizes: an overflow is an empty result, never a
// wrapped value.
#pragma once

#include <cstdint>
#include <optional>

namespace oscar {

[[nodiscard]] constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a,
                                                                 std::uint64_t b) noexcept {
  if (a > UINT64_MAX - b) return std::nullopt;
  return a + b;
}

[[nodiscard]] constexpr std::optional<std::uint64_t> checked_mul(std::uint64_t a,
                                                                 std::uint64_t b) noexcept {
  if (b != 0 && a > UINT64_MAX / b) return std::nullopt;
  return a * b;
}

}  // namespace oscar

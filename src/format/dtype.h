// Element types of the safetensors container and the size of a tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/checked_math.h"

namespace oscar {

enum class DType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
};

const char* dtype_name(DType dtype) noexcept;  // as in the file: "F32"
std::uint64_t dtype_bytes(DType dtype) noexcept;
std::optional<DType> dtype_from_name(std::string_view name) noexcept;

// Element size × product of shape; empty where that overflows 64 bits.
std::optional<std::uint64_t> tensor_bytes(DType dtype,
                                          std::span<const std::uint64_t> shape) noexcept;

// "[2, 64, 64]"
std::string shape_text(std::span<const std::uint64_t> shape);

}  // namespace oscar

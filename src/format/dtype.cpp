#include "format/dtype.h"

namespace oscar {
namespace {

struct DTypeRow {
  DType dtype;
  const char* name;
  std::uint64_t bytes;
};

constexpr DTypeRow kRows[] = {
    {DType::kBool, "BOOL", 1},      {DType::kU8, "U8", 1},          {DType::kI8, "I8", 1},
    {DType::kF8E5M2, "F8_E5M2", 1}, {DType::kF8E4M3, "F8_E4M3", 1}, {DType::kI16, "I16", 2},
    {DType::kU16, "U16", 2},        {DType::kF16, "F16", 2},        {DType::kBF16, "BF16", 2},
    {DType::kI32, "I32", 4},        {DType::kU32, "U32", 4},        {DType::kF32, "F32", 4},
    {DType::kI64, "I64", 8},        {DType::kU64, "U64", 8},        {DType::kF64, "F64", 8},
};

constexpr bool rows_follow_the_enum() {
  for (std::size_t i = 0; i < std::size(kRows); ++i) {
    if (static_cast<std::size_t>(kRows[i].dtype) != i) return false;
  }
  return std::size(kRows) == static_cast<std::size_t>(DType::kF64) + 1;
}
static_assert(rows_follow_the_enum());

}  // namespace

const char* dtype_name(DType dtype) noexcept { return kRows[static_cast<std::size_t>(dtype)].name; }

std::uint64_t dtype_bytes(DType dtype) noexcept {
  return kRows[static_cast<std::size_t>(dtype)].bytes;
}

std::optional<DType> dtype_from_name(std::string_view name) noexcept {
  for (const DTypeRow& row : kRows) {
    if (name == row.name) return row.dtype;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> tensor_bytes(DType dtype,
                                          std::span<const std::uint64_t> shape) noexcept {
  std::optional<std::uint64_t> bytes = dtype_bytes(dtype);
  for (const std::uint64_t extent : shape) {
    bytes = checked_mul(*bytes, extent);
    if (!bytes) return std::nullopt;
  }
  return bytes;
}

std::string shape_text(std::span<const std::uint64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

}  // namespace oscar

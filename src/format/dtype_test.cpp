#include "format/dtype.h"

#include <gtest/gtest.h>

namespace oscar {
namespace {

TEST(DType, NamesAndSizes) {
  EXPECT_STREQ(dtype_name(DType::kBF16), "BF16");
  EXPECT_EQ(dtype_bytes(DType::kBF16), 2u);
  EXPECT_EQ(dtype_bytes(DType::kF64), 8u);
  for (int i = 0; i <= static_cast<int>(DType::kF64); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  }
  EXPECT_FALSE(dtype_from_name("F128"));
  EXPECT_FALSE(dtype_from_name("f32"));
  EXPECT_FALSE(dtype_from_name(""));
}

TEST(DType, TensorSizesDoNotWrap) {
  using Shape = std::vector<std::uint64_t>;
  EXPECT_EQ(tensor_bytes(DType::kF32, Shape{2, 64, 64}), 32768u);
  EXPECT_EQ(tensor_bytes(DType::kF32, Shape{}), 4u);
  EXPECT_EQ(tensor_bytes(DType::kF32, Shape{0, UINT64_MAX}), 0u);
  EXPECT_FALSE(tensor_bytes(DType::kF32, Shape{std::uint64_t{1} << 62}));
  EXPECT_FALSE(tensor_bytes(DType::kU8, Shape{std::uint64_t{1} << 32, std::uint64_t{1} << 32}));
  EXPECT_EQ(shape_text(Shape{2, 64}), "[2, 64]");
  EXPECT_EQ(shape_text(Shape{}), "[]");
}

}  // namespace
}  // namespace oscar

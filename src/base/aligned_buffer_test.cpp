#include "base/aligned_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "base/test_files.h"

namespace oscar {
namespace {

TEST(AlignedBuffer, IsAlignedAndZero) {
  for (const std::uint64_t size : {1u, 63u, 64u, 1000u}) {
    AlignedBuffer<float> buffer(size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % kBufferAlignment, 0u);
    EXPECT_EQ(buffer.size_bytes(), 4 * size);
    EXPECT_TRUE(std::all_of(buffer.begin(), buffer.end(), [](float x) { return x == 0; }));
    buffer[size - 1] = 2.5f;
    EXPECT_EQ(std::as_const(buffer)[size - 1], 2.5f);
  }
}

TEST(AlignedBuffer, MovesAndKnowsItsSize) {
  AlignedBuffer<int> from(3);
  from[2] = 7;
  AlignedBuffer<int> to = std::move(from);
  EXPECT_EQ(to[2], 7);
  EXPECT_EQ(from.size(), 0u);
  EXPECT_EQ(AlignedBuffer<int>(0).size(), 0u);
  EXPECT_EQ(AlignedBuffer<int>().data(), nullptr);
}

TEST(AlignedBuffer, RefusesSizesThatOverflow) {
  // 2^62 + 1 elements of 4 bytes would wrap around to 4 bytes.
  const std::uint64_t size = (std::uint64_t{1} << 62) + 1;
  expect_error(ErrorCode::kUnsupported, {"4611686018427387905 elements of 4 bytes"},
               [&] { AlignedBuffer<float> buffer(size); });
}

}  // namespace
}  // namespace oscar

#include "base/hash.h"

#include <gtest/gtest.h>

#include <string>

namespace oscar {
namespace {

// The empty input's value is part of the published specification of XXH3-128.
TEST(Hash, KnownValues) {
  EXPECT_EQ(hash_hex("", 0), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hash_hex("a", 1), "a96faf705af16834e6c632b61e964e1f");
  EXPECT_EQ(hash_hex("abc", 3), "06b05ab6733a618578af5f94892f3950");
}

TEST(Hash, KnownValuesOf64Bits) {
  EXPECT_EQ(hash_64("", 0), 0x2d06800538d394c2u);
  EXPECT_NE(hash_64("", 0, 1), hash_64("", 0));
}

TEST(Hash, PiecesGiveTheSame) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 7);
  for (const std::size_t piece : {1u, 100u, 4999u}) {
    Hasher hasher;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      hasher.update(text.data() + at, std::min(piece, text.size() - at));
    }
    EXPECT_EQ(hasher.hex(), hash_hex(text.data(), text.size()));
    EXPECT_EQ(hasher.hex(), hash_hex(text.data(), text.size())) << "hex() changes the state";
  }
  EXPECT_EQ(Hasher().hex(), hash_hex("", 0));
}

}  // namespace
}  // namespace oscar

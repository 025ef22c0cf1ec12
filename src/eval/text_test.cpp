#include "eval/text.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"

namespace oscar::eval {
namespace {

class TextFiles : public testing::Test {
 protected:
  ~TextFiles() override { ::unlink(path_.c_str()); }

  std::string write(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
    return path_;
  }

  std::string refusal(const std::string& bytes) {
    const std::string path = write(bytes);
    try {
      const TextFile file(path);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
      return error.what();
    }
    return "";
  }

 private:
  const std::string path_ = testing::TempDir() + "oscar_text_test_" + std::to_string(::getpid());
};

TEST(Utf8, WellFormedTextPasses) {
  EXPECT_FALSE(first_invalid_utf8(""));
  EXPECT_FALSE(first_invalid_utf8("plain\r\ntext"));
  EXPECT_FALSE(first_invalid_utf8("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xed\x9f\xbf"));
  EXPECT_FALSE(first_invalid_utf8("\xf4\x8f\xbf\xbf"));  // U+10FFFF
}

TEST(Utf8, FirstBadByteIsFound) {
  EXPECT_EQ(first_invalid_utf8("ab\xff"), 2u);
  EXPECT_EQ(first_invalid_utf8("a\x80"), 1u);             // continuation alone
  EXPECT_EQ(first_invalid_utf8("\xc0\xaf"), 0u);          // overlong
  EXPECT_EQ(first_invalid_utf8("\xe0\x9f\xbf"), 0u);      // overlong
  EXPECT_EQ(first_invalid_utf8("\xed\xa0\x80"), 0u);      // surrogate
  EXPECT_EQ(first_invalid_utf8("\xf4\x90\x80\x80"), 0u);  // past U+10FFFF
  EXPECT_EQ(first_invalid_utf8("ok \xe2\x82"), 3u);       // cut short
  EXPECT_EQ(first_invalid_utf8("\xe2\x82z"), 0u);
}

TEST(Utf8, IncompleteTailIsHeldBack) {
  EXPECT_EQ(incomplete_utf8_tail("abc"), 0u);
  EXPECT_EQ(incomplete_utf8_tail("a\xe2"), 1u);
  EXPECT_EQ(incomplete_utf8_tail("a\xe2\x82"), 2u);
  EXPECT_EQ(incomplete_utf8_tail("a\xe2\x82\xac"), 0u);
  EXPECT_EQ(incomplete_utf8_tail("\xf0\x9f\x98"), 3u);
  EXPECT_EQ(incomplete_utf8_tail("\x82\xac"), 0u);  // never completed: no use in waiting
  EXPECT_EQ(incomplete_utf8_tail(""), 0u);
}

TEST_F(TextFiles, EmptyAndForeignBytesAreRefused) {
  EXPECT_NE(refusal("").find("is empty"), std::string::npos);
  EXPECT_NE(refusal("abc\xff").find("offset 3"), std::string::npos);
  EXPECT_THROW(TextFile("/nonexistent/text"), Error);
}

TEST_F(TextFiles, BytesAreKeptAsTheyAre) {
  const std::string bytes = "one\r\ntwo\r\n";
  EXPECT_EQ(TextFile(write(bytes)).bytes(), bytes);
}

// Concatenated pieces are the text, and none is empty.
void expect_pieces_cover(const std::string& text, std::size_t max_piece) {
  std::string_view rest = text;
  std::size_t total = 0;
  while (!rest.empty()) {
    const std::size_t piece = next_piece_bytes(rest);
    ASSERT_GT(piece, 0u);
    ASSERT_LE(piece, max_piece);
    ASSERT_FALSE(first_invalid_utf8(rest.substr(0, piece))) << "piece at " << total;
    total += piece;
    rest.remove_prefix(piece);
  }
  EXPECT_EQ(total, text.size());
}

TEST(Pieces, ShortTextIsOnePiece) {
  EXPECT_EQ(next_piece_bytes("one line"), 8u);
  const std::string lines(500000, '\n');
  EXPECT_EQ(next_piece_bytes(lines), lines.size());
}

TEST(Pieces, LongTextsAreCutBetweenCharacters) {
  constexpr std::size_t kLongLine = 16 << 10, kPiece = 1 << 20;
  expect_pieces_cover(std::string(300000, 'a'), kLongLine);
  std::string euros;
  for (int i = 0; i < 100000; ++i) euros += "\xe2\x82\xac";
  expect_pieces_cover(euros, kLongLine);
  std::string words;
  for (int i = 0; i < 100000; ++i) words += "word ";
  expect_pieces_cover(words, kLongLine);
  std::string lines;
  for (int i = 0; i < 100000; ++i) lines += "a line of text, \xc3\xa9\n";
  expect_pieces_cover(lines, kPiece);
}

TEST(Pieces, ALongLineIsCutBeforeASpace) {
  std::string words;
  for (int i = 0; i < 10000; ++i) words += "word ";
  const std::size_t piece = next_piece_bytes(words);
  EXPECT_EQ(words[piece], ' ');
  EXPECT_NE(words[piece - 1], ' ');
}

}  // namespace
}  // namespace oscar::eval

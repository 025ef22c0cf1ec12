#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <utility>

#include "base/test_files.h"

namespace oscar {
namespace {

std::string text_of(const MappedFile& file) { return {file.bytes().begin(), file.bytes().end()}; }

TEST(MappedFile, ShowsTheBytes) {
  const TestFolder folder;
  const std::string path = folder.file("a");
  std::string text(10000, 'x');
  text[0] = '\0';
  text.back() = '\xff';
  write_text(path, text);
  MappedFile file(path);
  EXPECT_EQ(text_of(file), text);
  EXPECT_EQ(file.path(), path);
  MappedFile moved = std::move(file);
  EXPECT_EQ(text_of(moved), text);
  EXPECT_TRUE(file.bytes().empty());
  write_text(folder.file("b"), "b");
  moved = MappedFile(folder.file("b"));
  EXPECT_EQ(text_of(moved), "b");
}

TEST(MappedFile, EmptyFileHasNoBytes) {
  const TestFolder folder;
  write_text(folder.file("a"), "");
  EXPECT_TRUE(MappedFile(folder.file("a")).bytes().empty());
}

TEST(MappedFile, RefusesWhatIsNoFile) {
  const TestFolder folder;
  const std::string missing = folder.file("missing");
  expect_error(ErrorCode::kNotFound, {missing, "No such file"}, [&] { MappedFile file(missing); });
  expect_error(ErrorCode::kIo, {folder.path().string(), "a directory"},
               [&] { MappedFile file(folder.path().string()); });
  const std::string pipe = folder.file("pipe");  // opening it must not wait for a writer
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_error(ErrorCode::kIo, {pipe, "not a regular file"}, [&] { MappedFile file(pipe); });
  expect_error(ErrorCode::kIo, {"/dev/zero", "not a regular file"},
               [] { MappedFile file("/dev/zero"); });
}

}  // namespace
}  // namespace oscar

#include "base/atomic_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "base/test_files.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

TEST(AtomicFile, IsThereOnlyAfterCommit) {
  const TestFolder folder;
  const std::string path = folder.file("a");
  AtomicFile file(path);
  file.write("one ");
  file.write("two");
  EXPECT_FALSE(fs::exists(path));
  file.commit();
  EXPECT_EQ(read_text(path), "one two");
  EXPECT_EQ(folder.num_entries(), 1);
  expect_error(ErrorCode::kIo, {path, "already committed"}, [&] { file.write("more"); });
  expect_error(ErrorCode::kIo, {path, "already committed"}, [&] { file.commit(); });
}

TEST(AtomicFile, LeavesTheTargetWhenNotCommitted) {
  const TestFolder folder;
  const std::string path = folder.file("a");
  write_text(path, "old");
  {
    AtomicFile file(path);
    file.write("new");
    EXPECT_EQ(read_text(path), "old");
  }
  EXPECT_EQ(read_text(path), "old");
  EXPECT_EQ(folder.num_entries(), 1);
}

TEST(AtomicFile, ReplacesAndKeepsPermissions) {
  const TestFolder folder;
  const std::string path = folder.file("a");
  write_text(path, "old and longer");
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  write_file_atomically(path, "new");
  EXPECT_EQ(read_text(path), "new");
  struct stat status;
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, mode_t{0640});
}

TEST(AtomicFile, FollowsALinkWhoseTargetIsMissing) {
  const TestFolder folder;
  fs::create_symlink("target", folder.file("link"));
  write_file_atomically(folder.file("link"), "new");
  EXPECT_TRUE(fs::is_symlink(folder.file("link")));
  EXPECT_EQ(read_text(folder.file("target")), "new");
}

TEST(AtomicFile, RefusesLinksInACircle) {
  const TestFolder folder;
  fs::create_symlink("b", folder.file("a"));
  fs::create_symlink("a", folder.file("b"));
  expect_error(ErrorCode::kIo, {folder.file("a"), "lead nowhere"},
               [&] { AtomicFile(folder.file("a")); });
  EXPECT_EQ(folder.num_entries(), 2);
}

TEST(AtomicFile, TemporaryFilesCanBeRemovedBeforeTheProcessEnds) {
  const TestFolder folder;
  AtomicFile one(folder.file("a")), two(folder.file("b"));
  one.write("part");
  EXPECT_EQ(folder.num_entries(), 2);
  remove_temporary_files();
  EXPECT_EQ(folder.num_entries(), 0);
}

TEST(AtomicFile, NewFileHasTheUsersPermissions) {
  const TestFolder folder;
  const mode_t before = ::umask(027);
  write_file_atomically(folder.file("a"), "x");
  ::umask(before);
  struct stat status;
  ASSERT_EQ(::stat(folder.file("a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, mode_t{0640});
}

TEST(AtomicFile, FollowsALink) {
  const TestFolder folder;
  fs::create_directory(folder.path() / "real");
  write_text(folder.file("real/a"), "old");
  fs::create_symlink("real/a", folder.path() / "link");
  write_file_atomically(folder.file("link"), "new");
  EXPECT_TRUE(fs::is_symlink(folder.path() / "link"));
  EXPECT_EQ(read_text(folder.file("real/a")), "new");
}

TEST(AtomicFile, WorksForTheLongestName) {
  const TestFolder folder;
  const std::string path = folder.file(std::string(255, 'n'));
  write_file_atomically(path, "x");
  EXPECT_EQ(read_text(path), "x");
}

TEST(AtomicFile, RefusesWhatIsNoFile) {
  const TestFolder folder;
  expect_error(ErrorCode::kIo, {folder.path().string(), "a folder"},
               [&] { AtomicFile file(folder.path().string()); });
  // As root a rename over a device would replace the device.
  expect_error(ErrorCode::kIo, {"/dev/full", "not a regular file"},
               [] { AtomicFile file("/dev/full"); });
  struct stat status;
  ASSERT_EQ(::stat("/dev/full", &status), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
  expect_error(ErrorCode::kNotFound,
               {"no/such/a': folder '", "no/such': No such file or directory"},
               [&] { AtomicFile file(folder.file("no/such/a")); });
  expect_error(ErrorCode::kIo, {"the name is empty"}, [] { AtomicFile file(""); });
}

TEST(AtomicFile, FullDeviceIsOneLine) {
  const int fd = ::open("/dev/full", O_WRONLY);
  ASSERT_GE(fd, 0);
  expect_error(ErrorCode::kIo, {"'x.safetensors'", "No space left on device", "after 5 bytes"},
               [&] { write_all(fd, "abc", 3, "x.safetensors", 5); });
  ::close(fd);
}

// The kernel refuses bytes past the limit just as a full disk does, midway through a write.
TEST(AtomicFile, WriteThatFailsLeavesNothing) {
  const TestFolder folder;
  const std::string path = folder.file("a");
  write_text(path, "old");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int result = 1;
    try {
      write_file_atomically(path, std::string(10000, 'x'));
    } catch (const Error& error) {
      const std::string message = error.what();
      result = message.find("File too large (after 4096 bytes)") != std::string::npos ? 0 : 2;
    }
    ::_exit(result);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(read_text(path), "old");
  EXPECT_EQ(folder.num_entries(), 1);
}

TEST(AtomicFile, FullDiskLeavesNothing) {
  const TestFolder folder;
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "mounting a small tmpfs needs root";
  }
  const std::string path = folder.file("a");
  write_text(path, "old");
  expect_error(ErrorCode::kIo, {path, "No space left on device", "free some space"},
               [&] { write_file_atomically(path, std::string(1 << 20, 'x')); });
  EXPECT_EQ(read_text(path), "old");
  EXPECT_EQ(folder.num_entries(), 1);
  EXPECT_EQ(::umount(folder.path().c_str()), 0);
}

TEST(AtomicFile, ErrorNamesAReadOnlyTarget) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  const TestFolder folder;
  const std::string path = folder.file("a");
  write_text(path, "old");
  ASSERT_EQ(::chmod(path.c_str(), 0444), 0);
  expect_error(ErrorCode::kIo, {path, "Permission denied"}, [&] { AtomicFile file(path); });
}

}  // namespace
}  // namespace oscar

// SPDX-License-Identifier: Apache-2.0
#include "runtime/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "runtime/temporary_name.h"
#include "tests/file_size_limit.h"
#include "tests/runtime/refusal.h"
#include "tests/temporary_directory.h"

namespace shiftrt {
namespace {

namespace fs = std::filesystem;

void Put(const fs::path& path, const std::string& content) { std::ofstream(path, std::ios::binary) << content; }

std::vector<std::string> Names(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename());
  return names;
}

class Files : public testing::Test {
 protected:
  const TemporaryDirectory directory_;
  const fs::path path_ = directory_.path() / "file";
};

TEST_F(Files, MapAndReadGiveTheBytes) {
  const std::string content("a\0b\xFF\n", 5);
  Put(path_, content);
  const MappedFile file(path_);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()), content);
  EXPECT_EQ(file.path(), path_);
  EXPECT_EQ(ReadFile(path_), content);
  EXPECT_EQ(ReadFile(path_, 5), content);
  ExpectRefusal([&] { ReadFile(path_, 4); }, path_.string(), "5 bytes, at most 4");
}

// A repository that was cloned without Git LFS has small texts in the places of its large files.
TEST_F(Files, AGitLfsPointerIsNamed) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 269060552\n";
  Put(path_, pointer);
  for (const auto& open : std::vector<std::function<void()>>{[&] { MappedFile{path_}; }, [&] { ReadFile(path_); },
                                                             [&] { MappedFile::OfText(path_); }})
    ExpectRefusal(open, path_.string(), "a Git LFS pointer in the place of a file of 269060552 bytes; `git lfs pull`");
  Put(path_, pointer + std::string(1024, 'x'));  // a text about pointers
  EXPECT_EQ(ReadFile(path_).size(), pointer.size() + 1024);
}

TEST_F(Files, AMappingMoves) {
  Put(path_, "abc");
  MappedFile first(path_);
  MappedFile second(std::move(first));
  EXPECT_EQ(second.bytes().size(), 3u);
  EXPECT_TRUE(first.bytes().empty());
  first = std::move(second);
  EXPECT_EQ(static_cast<char>(first.bytes()[2]), 'c');
}

TEST_F(Files, AnEmptyFileIsEmpty) {
  Put(path_, "");
  EXPECT_TRUE(MappedFile(path_).bytes().empty());
  EXPECT_EQ(ReadFile(path_), "");
}

TEST_F(Files, WhatIsNoFileIsRefused) {
  const auto refused = [](const fs::path& path, const char* word) {
    ExpectRefusal([&] { MappedFile{path}; }, path.string(), word);
    ExpectRefusal([&] { ReadFile(path); }, path.string(), word);
  };
  refused(path_, "No such file");
  refused(path_ / "below", "No such file");
  refused(directory_.path(), "not a regular file");
  refused("/dev/null", "not a regular file");
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);  // nobody ever writes to it
  refused(path_, "not a regular file");
}

TEST_F(Files, CommitReplacesAndLeavesNothingElse) {
  Put(path_, "before");
  AtomicFile file(path_);
  file.Write("new ");
  file.Write("");
  file.Write(std::string(100000, 'x'));
  EXPECT_EQ(ReadFile(path_), "before");
  file.Commit();
  EXPECT_EQ(ReadFile(path_), "new " + std::string(100000, 'x'));
  EXPECT_EQ(Names(directory_.path()), std::vector<std::string>{"file"});
}

TEST_F(Files, WithoutCommitNothingHappened) {
  { AtomicFile(path_).Write("half"); }
  EXPECT_TRUE(Names(directory_.path()).empty());
  Put(path_, "before");
  EXPECT_THROW(
      {
        AtomicFile file(path_);
        file.Write("half");
        Fail("an error in between");
      },
      Error);
  EXPECT_EQ(ReadFile(path_), "before");
  EXPECT_EQ(Names(directory_.path()), std::vector<std::string>{"file"});
}

TEST_F(Files, AFullDiskKeepsTheTarget) {
  Put(path_, "before");
  {
    const FileSizeLimit limit(1000);
    ExpectRefusal(
        [&] {
          AtomicFile file(path_);
          file.Write(std::string(900, 'x'));
          file.Write(std::string(900, 'x'));  // cut at 1000, then refused
          file.Commit();
        },
        path_.string(), "cannot write it");
  }
  EXPECT_EQ(ReadFile(path_), "before");
  EXPECT_EQ(Names(directory_.path()), std::vector<std::string>{"file"});
}

TEST_F(Files, WhereNothingCanBePutIsSaidAtOnce) {
  const fs::path missing = directory_.path() / "missing" / "file";
  ExpectRefusal([&] { AtomicFile{missing}; }, missing.string(), "No such file");
  Put(path_, "a file, not a directory");
  ExpectRefusal([&] { AtomicFile{path_ / "file"}; }, (path_ / "file").string(), "Not a directory");
}

TEST_F(Files, AStreamGetsTheBytesAndStays) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  const int reader = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK);
  WriteFile(path_, "through the pipe");
  char text[32];
  EXPECT_EQ(std::string(text, ::read(reader, text, sizeof text)), "through the pipe");
  ::close(reader);
  EXPECT_TRUE(fs::is_fifo(path_));
  EXPECT_EQ(Names(directory_.path()), std::vector<std::string>{"file"});

  // Like /dev/stdout if standard output is a file to which other processes write.
  const fs::path other = directory_.path() / "output";
  Put(other, "before;");
  const int fd = ::open(other.c_str(), O_WRONLY | O_APPEND);
  WriteFile("/dev/fd/" + std::to_string(fd), "after");
  WriteFile("/proc/self/fd/" + std::to_string(fd), ".");
  ::close(fd);
  EXPECT_EQ(ReadFile(other), "before;after.");
}

TEST_F(Files, ATargetThatCannotBeReplacedFailsTheCommit) {
  {
    AtomicFile file(path_);
    file.Write("x");
    fs::create_directories(path_ / "full");
    ExpectRefusal([&] { file.Commit(); }, path_.string(), "rename the temporary file to it");
  }
  ExpectRefusal([&] { AtomicFile again(path_); }, path_.string(), "is a directory");
  EXPECT_EQ(Names(directory_.path()), std::vector<std::string>{"file"});
  EXPECT_EQ(Names(path_), std::vector<std::string>{"full"});
}

TEST_F(Files, ANameWithoutADirectoryIsInTheWorkingOne) {
  const fs::path before = fs::current_path();
  fs::current_path(directory_.path());
  AtomicFile file("file");
  file.Write("x");
  file.Commit();
  fs::current_path(before);
  EXPECT_EQ(ReadFile(path_), "x");
}

// Runs in a process of its own, because a requested interrupt cannot be taken back.
TEST_F(Files, AnInterruptInMidWriteLeavesTheTarget) {
  Put(path_, "before");
  CheckInterrupted();
  const auto interrupted = [&] {
    std::signal(SIGINT, [](int) { RequestInterrupt(); });
    try {
      AtomicFile file(path_);
      file.Write("half");
      std::raise(SIGINT);
      CheckInterrupted();
      file.Commit();
    } catch (const Interrupted&) {
      std::_Exit(7);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(interrupted(), testing::ExitedWithCode(7), "");
  EXPECT_EQ(ReadFile(path_), "before");
  EXPECT_EQ(Names(directory_.path()), std::vector<std::string>{"file"});
}

TEST_F(Files, DirectoriesInADirectoryComeAndGoWithIt) {
  const fs::path out = directory_.path() / "new/out";
  {
    AtomicDirectory files(out);
    files.Create("a").Write("1");
    files.Create("in/it/b").Write("2");
    EXPECT_TRUE(fs::is_directory(out / "in/it"));
  }
  EXPECT_FALSE(fs::exists(directory_.path() / "new")) << "without a commit";
  AtomicDirectory files(out);
  files.Create("a").Write("1");
  files.Create("in/it/b").Write("2");
  files.Commit();
  EXPECT_EQ(ReadFile(out / "a"), "1");
  EXPECT_EQ(ReadFile(out / "in/it/b"), "2");
  EXPECT_EQ(Names(out / "in/it"), std::vector<std::string>{"b"});
  {
    AtomicDirectory again(out);
    again.Create("in/c").Write("3");
    again.Create("other/d").Write("4");
  }
  EXPECT_FALSE(fs::exists(out / "other"));
  EXPECT_EQ(ReadFile(out / "in/it/b"), "2") << "what was there stays";
}

// The next program that writes the same output removes the temporary file of a killed one. The file of a program that
// still writes stays.
TEST_F(Files, TheNextRunRemovesWhatAKilledOneLeft) {
  const fs::path output = directory_.path() / "out.json", abandoned = TemporaryName(output),
                 other = TemporaryName(directory_.path() / "out.json2"), written = TemporaryName(output);
  const std::vector<fs::path> of_users = {directory_.path() / "out.json.tmp77",
                                          directory_.path() / "out.json.tmp-shiftrt-77",
                                          directory_.path() / "out.json.tmp-shiftrt-77-0123abcd.txt"};
  WriteFile(abandoned, "abandoned");
  WriteFile(other, "of another output");
  for (const fs::path& file : of_users) WriteFile(file, "not ours");
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(output);
    file.Write(std::string_view("half"));
    ::raise(SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  const auto left = [&] {  // by the child
    const std::string begin = "out.json.tmp-shiftrt-" + std::to_string(child) + "-";
    return std::any_of(fs::directory_iterator(directory_.path()), fs::directory_iterator(),
                       [&](const auto& entry) { return entry.path().filename().string().starts_with(begin); });
  };
  ASSERT_TRUE(left());
  {
    const int alive = ::open(written.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_TRUE(LockTemporary(alive));
    WriteFile(output, "whole");
    EXPECT_TRUE(fs::exists(written));
    ::close(alive);
  }
  EXPECT_EQ(ReadFile(output), "whole");
  EXPECT_FALSE(left());
  EXPECT_FALSE(fs::exists(abandoned));
  WriteFile(output, "again");
  EXPECT_FALSE(fs::exists(written));
  for (const fs::path& file : of_users) EXPECT_EQ(ReadFile(file), "not ours") << file;
  EXPECT_TRUE(fs::exists(other));
}

// Two programs in containers may have the same number, and two threads of a program have it.
TEST_F(Files, TwoWritersOfOneFileDoNotShareATemporaryFile) {
  const fs::path output = directory_.path() / "out.json";
  AtomicFile first(output);
  first.Write("first, which is longer");
  AtomicFile second(output);
  second.Write("second");
  first.Commit();
  EXPECT_EQ(ReadFile(output), "first, which is longer");
  second.Commit();
  EXPECT_EQ(ReadFile(output), "second");
}

// A link with a temporary name of the output, by whoever may write to its directory.
TEST_F(Files, ALinkWithATemporaryNameIsNotFollowed) {
  const fs::path output = directory_.path() / "out.json", other = directory_.path() / "other";
  WriteFile(other, "keep");
  fs::create_symlink(other, TemporaryName(output));
  WriteFile(output, "text");
  EXPECT_EQ(ReadFile(other), "keep");
  EXPECT_EQ(ReadFile(output), "text");
  EXPECT_FALSE(fs::is_symlink(output));
}

// A program that ends without its destructors removes what it has not completed, and no more.
TEST_F(Files, HeldTemporariesAreRemovedAtOnce) {
  const fs::path complete = directory_.path() / "complete", half = directory_.path() / "half";
  const fs::path staged = TemporaryName(directory_.path() / "directory");
  WriteFile(complete, "text");
  AtomicFile file(half);
  file.Write("te");
  fs::create_directory(staged);
  WriteFile(staged / "file", "text");
  HoldTemporary(staged);
  RemoveHeldTemporaries();
  EXPECT_EQ(ReadFile(complete), "text");
  EXPECT_TRUE(std::none_of(fs::directory_iterator(directory_.path()), fs::directory_iterator(),
                           [](const auto& entry) { return entry.path().filename().string().starts_with("half"); }));
  EXPECT_FALSE(fs::exists(staged));
  ReleaseTemporary(staged);
  fs::create_directory(staged);
  RemoveHeldTemporaries();
  EXPECT_TRUE(fs::exists(staged));
}

// A pipe that nobody reads would be waited for.
TEST_F(Files, APipeThatNobodyReadsIsRefusedAtOnce) {
  const fs::path pipe = directory_.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ExpectRefusal([&] { WriteFile(pipe, "text"); }, pipe.string(), "no program reads");
}

// An export commits the files of a temporary directory that its process has locked. It waited for itself.
TEST_F(Files, ATemporaryDirectoryOfThisProcessIsCommitted) {
  const fs::path own = TemporaryName(directory_.path() / "out");
  fs::create_directory(own);
  const int lock = ::open(own.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_TRUE(LockTemporary(lock));
  AtomicDirectory out(own);
  out.Create("file").Write("text");
  out.Commit();
  EXPECT_EQ(ReadFile(own / "file"), "text");
  ::close(lock);
}

// No file gets its name while another program holds the lock of the directory, however long that takes.
TEST_F(Files, ALockedDirectoryIsWaitedFor) {
  const fs::path path = directory_.path() / "shared";
  fs::create_directory(path);
  const int lock = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_TRUE(LockTemporary(lock));
  AtomicDirectory out(path);
  out.Create("file").Write("text");
  std::future<void> commit = std::async(std::launch::async, [&] { out.Commit(); });
  EXPECT_EQ(commit.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  EXPECT_FALSE(fs::exists(path / "file"));
  ::close(lock);
  commit.get();
  EXPECT_EQ(ReadFile(path / "file"), "text");
}

// Another program that tries whether it can write there removes the directory that it made.
TEST_F(Files, ADirectoryThatVanishesIsMadeAgain) {
  const fs::path path = directory_.path() / "new";
  AtomicDirectory out(path);
  fs::remove(path);
  out.Create("file").Write("text");
  out.Commit();
  EXPECT_EQ(ReadFile(path / "file"), "text");
}

// The empty input has the value of the reference implementation; a hundred 'a' and a hundred 'b' have different values.
TEST(HashHex, IsXxh3) {
  EXPECT_EQ(HashHex(""), "2d06800538d394c2");
  EXPECT_NE(HashHex(std::string(100, 'a')), HashHex(std::string(100, 'b')));
  EXPECT_EQ(HashHex("abc"), HashHex(std::as_bytes(std::span("abc", 3))));
}

TEST(WithName, EndsInTheNameOfTheFile) {
  for (const char* path : {"a/out", "a/out/", "a/./out//", "a/b/../out/"}) EXPECT_EQ(WithName(path), "a/out") << path;
  EXPECT_EQ(WithName("out/"), "out");
  EXPECT_EQ(WithName("/"), "/");
  EXPECT_EQ(WithName(""), "");
  const fs::path here = fs::current_path();
  for (const char* path : {".", "./", "a/.."}) EXPECT_EQ(WithName(path), here) << path;
  EXPECT_EQ(WithName(".."), here.parent_path());
  EXPECT_EQ(WithName("../"), here.parent_path());
}

}  // namespace
}  // namespace shiftrt

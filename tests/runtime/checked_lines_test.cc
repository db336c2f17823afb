// SPDX-License-Identifier: Apache-2.0
#include "runtime/checked_lines.h"

#include <sys/stat.h>

#include "runtime/files.h"
#include "tests/runtime/refusal.h"
#include "tests/temporary_directory.h"
#include "tests/write_text.h"

namespace shiftrt {
namespace {

class CheckedLinesTest : public ::testing::Test {
 protected:
  std::filesystem::path File() const { return directory_.path() / "journal"; }
  void Append(std::initializer_list<const char*> texts) const {
    LineAppender lines(File());
    for (const char* text : texts) lines.Add(text);
  }

  TemporaryDirectory directory_;
};

TEST_F(CheckedLinesTest, ReadsWhatWasAppended) {
  Append({"a", "{\"b\": 1}"});
  Append({""});
  const CheckedLines lines = ReadCheckedLines(File());
  EXPECT_EQ(lines.texts, (std::vector<std::string>{"a", "{\"b\": 1}", ""}));
  EXPECT_TRUE(lines.bad.empty());
}

// Whatever byte of a line changes, the line is named and not believed, and the others are read.
TEST_F(CheckedLinesTest, EveryChangedByteIsFound) {
  Append({"first", "second 0.3333", "third"});
  const std::string good = ReadFile(File());
  const size_t begin = good.find('\n') + 1, end = good.find('\n', begin);
  for (size_t at = begin; at < end; ++at) {
    std::string changed = good;
    changed[at] = changed[at] == '7' ? '8' : '7';
    WriteText(File(), changed);
    const CheckedLines lines = ReadCheckedLines(File());
    EXPECT_EQ(lines.texts, (std::vector<std::string>{"first", "third"})) << at;
    ASSERT_EQ(lines.bad.size(), 1u) << at;
    EXPECT_NE(lines.bad[0].find("journal:2: the checksum"), std::string::npos) << lines.bad[0];
  }
}

TEST_F(CheckedLinesTest, ALineThatBreaksOffIsLeftOutAndSwallowsNothing) {
  Append({"first", "second"});
  std::filesystem::resize_file(File(), std::filesystem::file_size(File()) - 4);
  EXPECT_EQ(ReadCheckedLines(File()).texts, (std::vector<std::string>{"first"}));
  EXPECT_TRUE(ReadCheckedLines(File()).bad.empty());
  Append({"third"});
  EXPECT_EQ(ReadCheckedLines(File()).texts, (std::vector<std::string>{"first", "third"}));
}

// A pipe that nobody writes would be waited for.
TEST_F(CheckedLinesTest, APipeIsRefusedAtOnce) {
  ASSERT_EQ(::mkfifo(File().c_str(), 0600), 0);
  ExpectRefusal([&] { LineAppender lines(File()); }, File().string(), "not a regular file");
  ExpectRefusal([&] { ReadCheckedLines(File()); }, File().string(), "not a regular file");
}

}  // namespace
}  // namespace shiftrt

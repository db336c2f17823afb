// SPDX-License-Identifier: Apache-2.0
// Compressed texts must be read like plain ones, and damaged ones refused with an error that names the file.
#include "runtime/text.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/compressed.h"
#include "tests/runtime/refusal.h"
#include "tests/temporary_directory.h"

namespace shiftrt {
namespace {

// Several times the size of the buffer for decompression; all lines are different.
std::string LongText() {
  std::string text;
  for (int i = 0; i < 30000; ++i) text += "line " + std::to_string(i) + "\n";
  return text;
}

class Text : public testing::Test {
 protected:
  void Put(const std::string& content) const { std::ofstream(path_, std::ios::binary) << content; }
  std::string Read(const std::string& content) const {
    Put(content);
    return ReadText(path_);
  }
  void ExpectRefused(const std::string& content, const std::string& word, uint64_t limit = kMaxTextBytes) const {
    Put(content);
    ExpectRefusal([&] { ReadText(path_, limit); }, path_.string(), word);
  }

  const TemporaryDirectory directory_;
  const std::filesystem::path path_ = directory_.path() / "text";
};

TEST_F(Text, PlainGzipAndZstandardGiveTheSame) {
  for (const std::string& text : {std::string(), std::string("short"), std::string("\0\n", 2), LongText()}) {
    EXPECT_EQ(Read(text), text);
    EXPECT_EQ(Read(Gzip(text)), text);
    EXPECT_EQ(Read(Zstd(text)), text);
  }
}

TEST_F(Text, MembersAndFramesFollowEachOther) {
  const std::string text = LongText();
  EXPECT_EQ(Read(Gzip(text) + Gzip("") + Gzip("end")), text + "end");
  EXPECT_EQ(Read(Zstd(text) + Zstd("") + Zstd("end")), text + "end");
}

TEST_F(Text, StreamsThatBreakOffAreRefused) {
  for (const std::string& text : {std::string("short"), LongText()}) {
    const std::string gzip = Gzip(text), zstd = Zstd(text);
    for (size_t size : {size_t{2}, size_t{9}, size_t{12}, gzip.size() / 2, gzip.size() - 8, gzip.size() - 1})
      ExpectRefused(gzip.substr(0, size), "is truncated");
    for (size_t size : {size_t{4}, size_t{5}, zstd.size() / 2, zstd.size() - 1})
      ExpectRefused(zstd.substr(0, size), "is truncated");
    ExpectRefused(gzip + gzip.substr(0, 11), "is truncated");
    ExpectRefused(zstd + zstd.substr(0, 7), "is truncated");
  }
}

TEST_F(Text, DamagedStreamsAreRefused) {
  const std::string text = LongText();
  std::string gzip = Gzip(text);
  gzip[gzip.size() - 6] ^= 1;  // in the checksum
  ExpectRefused(gzip, "damaged gzip data (incorrect data check)");
  ExpectRefused(Gzip(text) + "tail", "damaged gzip data");
  std::string zstd = Zstd(text);
  zstd[zstd.size() / 2] ^= 0x55;
  ExpectRefused(zstd, "damaged zstd data");
  ExpectRefused(Zstd(text) + "tail", "damaged zstd data");
}

TEST_F(Text, WhatWouldFillTheMemoryIsRefused) {
  const std::string zeros(1 << 20, '\0');
  ExpectRefused(Gzip(zeros), "more than 1000000 bytes once decompressed", 1000000);
  ExpectRefused(Zstd(zeros), "more than 1000000 bytes once decompressed", 1000000);
  ExpectRefused(zeros, "at most 1000000", 1000000);
}

TEST(WithoutCompression, LeavesTheExtensionThatSaysWhatTheTextIs) {
  EXPECT_EQ(WithoutCompression("a/b.jsonl.gz"), "a/b.jsonl");
  EXPECT_EQ(WithoutCompression("b.txt.zst"), "b.txt");
  EXPECT_EQ(WithoutCompression("b.jsonl"), "b.jsonl");
}

}  // namespace
}  // namespace shiftrt

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/test_directory.h"
#include "tokenizers/tokenizer.h"

namespace shiftrt {
namespace {

// Byte-level without merges: one token per byte, so every character of several bytes arrives in parts.
class Bytes final : public Tokenizer {
 public:
  std::vector<int32_t> Encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }
  std::string Decode(std::span<const int32_t> ids, bool) const override { return bytes_->Decode(Remap(ids)); }
  std::string Piece(int32_t id) const override { return std::to_string(id); }
  int32_t vocab_size() const override { return 256; }

 private:
  std::vector<int32_t> Remap(std::span<const int32_t> ids) const {
    std::vector<int32_t> out;
    for (const int32_t id : ids) out.push_back(first_ + id);
    return out;
  }
  // Byte pieces <0x00>.. follow the user-defined symbol in the SentencePiece golden.
  std::unique_ptr<Tokenizer> bytes_ = LoadTokenizer(TestDirectory() / "goldens" / "tokenizers" / "sentencepiece");
  int32_t first_ = FirstByte();
  int32_t FirstByte() const {
    for (int32_t id = 0; id < bytes_->vocab_size(); ++id)
      if (bytes_->Piece(id) == "<0x00>") return id;
    return -1;
  }
};

std::vector<std::string> Stream(const std::string& bytes) {
  static const Bytes tokenizer;
  StreamingDecoder decoder(tokenizer);
  std::vector<std::string> pushed;
  for (const int32_t id : tokenizer.Encode(bytes)) pushed.push_back(decoder.Push(id));
  pushed.push_back(decoder.Finish());
  return pushed;
}

using Pieces = std::vector<std::string>;

TEST(StreamingDecoder, HoldsBackUnfinishedCharacters) {
  EXPECT_EQ(Stream("a\xC3\xA9"), (Pieces{"a", "", "\xC3\xA9", ""}));
  EXPECT_EQ(Stream("\xF0\x9F\x98\x80!"), (Pieces{"", "", "", "\xF0\x9F\x98\x80", "!", ""}));
}

// The prompt may end within a character, which the reply completes.
TEST(DecodeReply, BeginsWithTheCharacterThatThePromptBegan) {
  const Bytes tokenizer;
  const auto reply = [&](const std::string& prompt, const std::string& text) {
    return DecodeReply(tokenizer, tokenizer.Encode(prompt), tokenizer.Encode(text));
  };
  EXPECT_EQ(reply("a", "b"), "b");
  EXPECT_EQ(reply("a\xC3", "\xA9"), "\xC3\xA9");
  EXPECT_EQ(reply("\xC3",
                  "\xA9"
                  "abc"),
            "\xC3\xA9"
            "abc");
  EXPECT_EQ(reply("\xF0\x9F\x99", "\x82"), "\xF0\x9F\x99\x82");
  EXPECT_EQ(reply("a\xC3", ""), "\xEF\xBF\xBD");
}

TEST(StreamingDecoder, ReplacesWhatNeverFinishes) {
  EXPECT_EQ(Stream("a\xF0\x9F"), (Pieces{"a", "", "", "\xEF\xBF\xBD"}));
  EXPECT_EQ(Stream("\xE4\xBD"
                   "b"),
            (Pieces{"", "",
                    "\xEF\xBF\xBD"
                    "b",
                    ""}));
  EXPECT_EQ(Stream("\x80\x80"
                   "c"),
            (Pieces{"", "\xEF\xBF\xBD",
                    "\xEF\xBF\xBD"
                    "c",
                    ""}));
}

TEST(StreamingDecoder, AGenuineReplacementCharacterComesThrough) {
  std::string text;
  for (const std::string& piece : Stream("x\xEF\xBF\xBDy\xEF\xBF\xBD")) text += piece;
  EXPECT_EQ(text, "x\xEF\xBF\xBDy\xEF\xBF\xBD");
}

TEST(StreamingDecoder, EmptyAndRepeatedFinish) {
  EXPECT_EQ(Stream(""), (Pieces{""}));
  EXPECT_EQ(Stream("  a"), (Pieces{"", " ", "a", ""}));  // SentencePiece drops one space at the start
}

}  // namespace
}  // namespace shiftrt

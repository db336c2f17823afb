// SPDX-License-Identifier: Apache-2.0
// Vocabularies as llama.cpp's converter writes them, against llama.cpp and transformers (goldens/make_converter.py).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/temporary_directory.h"
#include "tests/test_directory.h"
#include "tests/write_text.h"
#include "tokenizers/gguf.h"

namespace shiftrt {
namespace {

using Ids = std::vector<int32_t>;

class Converter : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    nlohmann::json all;
    std::ifstream(goldens_ / "expected.json") >> all;
    expected_ = all.at(GetParam());
    texts_ = expected_.at("texts").get<std::vector<std::string>>();
    ASSERT_GT(texts_.size(), 50u);
  }
  std::filesystem::path Path() const { return goldens_ / (std::string(GetParam()) + ".gguf"); }
  std::vector<Ids> Expected(const char* key) const { return expected_.at(key); }
  bool IsSentencePiece() const { return GgufFile(Path()).metadata().Text("tokenizer.ggml.model") == "llama"; }
  // A mark of SentencePiece that is written in the text: llama.cpp takes it for the text of a piece, and the library
  // for a space, as transformers does.
  static bool HasMark(const std::string& text) { return text.find("\u2581") != std::string::npos; }

  void ExpectIds(const Tokenizer& tokenizer) const {
    const auto plain = Expected("llama_cpp"), begun = Expected("llama_cpp_with_bos");
    for (size_t i = 0; i < texts_.size(); ++i) {
      if (IsSentencePiece() && HasMark(texts_[i])) continue;
      EXPECT_EQ(tokenizer.Encode(texts_[i]), plain[i]) << "text " << i << ": '" << texts_[i] << "'";
      EXPECT_EQ(tokenizer.EncodeWithBos(texts_[i]), begun[i]) << "text " << i << ": '" << texts_[i] << "'";
    }
  }

  const std::filesystem::path goldens_ = TestDirectory() / "goldens/converter";
  nlohmann::json expected_;
  std::vector<std::string> texts_;
};

TEST_P(Converter, GivesTheIdsOfLlamaCpp) { ExpectIds(*LoadTokenizer(Path())); }

// The directory that an export makes of the file.
TEST_P(Converter, GivesThemFromTheFilesOfADirectory) {
  const TemporaryDirectory directory;
  for (const auto& [name, text] : GgufTokenizerFiles(GgufFile(Path()))) WriteText(directory.path() / name, text);
  ExpectIds(*LoadTokenizer(directory.path()));
}

// transformers 5 puts no space before a text that begins with one, and libsentencepiece and llama.cpp do. Its fast
// tokenizer joins runs of more spaces than the longest piece from the other end.
TEST_P(Converter, GivesTheIdsOfTransformers) {
  const auto tokenizer = LoadTokenizer(Path());
  const auto plain = Expected("transformers"), begun = Expected("transformers_with_bos"), other = Expected("llama_cpp");
  size_t same = 0;
  for (size_t i = 0; i < texts_.size(); ++i) {
    if (IsSentencePiece() && plain[i] != other[i] && !HasMark(texts_[i])) continue;
    if (IsSentencePiece() && std::string_view(GetParam()) != "gemma" && HasMark(texts_[i])) continue;
    EXPECT_EQ(tokenizer->Encode(texts_[i]), plain[i]) << "text " << i << ": '" << texts_[i] << "'";
    EXPECT_EQ(tokenizer->EncodeWithBos(texts_[i]), begun[i]) << "text " << i << ": '" << texts_[i] << "'";
    ++same;
  }
  EXPECT_GE(same, IsSentencePiece() ? 30u : texts_.size());
}

TEST_P(Converter, DecodesWhatItEncodes) {
  const auto tokenizer = LoadTokenizer(Path());
  for (const std::string& text : texts_) {
    const Ids ids = tokenizer->Encode(text);
    if (text.find('<') == std::string::npos && !HasMark(text)) {
      EXPECT_EQ(tokenizer->Decode(ids), text);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Converter,
                         testing::Values("gemma", "llama2", "phi3", "qwen2", "llama-bpe", "smollm", "gpt-2"),
                         [](const auto& info) {
                           std::string name = info.param;
                           name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
                           return name;
                         });

}  // namespace
}  // namespace shiftrt

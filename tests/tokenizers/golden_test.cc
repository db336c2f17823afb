// SPDX-License-Identifier: Apache-2.0
// Tests against ids and texts of the reference implementations (goldens/make_tokenizers.py).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/tokenizers/goldens.h"
#include "tokenizers/tokenizer.h"

namespace shiftrt {
namespace {

using Ids = std::vector<int32_t>;

class Golden : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::ifstream(kTokenizerGoldens / "expected.json") >> all_;
    tokenizer_ = LoadTokenizer(kTokenizerGoldens / GetParam());
  }
  const nlohmann::json& Expected(const char* key) const { return all_["tokenizers"][GetParam()][key]; }
  std::vector<std::string> Texts() const { return all_["texts"]; }

  nlohmann::json all_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(Golden, Encodes) {
  const auto texts = Texts();
  ASSERT_GT(texts.size(), 30u);
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(tokenizer_->Encode(texts[i]), Expected("ids")[i].get<Ids>()) << "text " << i << ": '" << texts[i] << "'";
  }
}

TEST_P(Golden, AddsBosAsItsConfigSays) {
  const auto texts = Texts();
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(tokenizer_->EncodeWithBos(texts[i]), Expected("with_bos")[i].get<Ids>()) << "text " << i;
  }
}

TEST_P(Golden, Decodes) {
  const auto texts = Texts();
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string text = tokenizer_->Decode(Expected("ids")[i].get<Ids>());
    // SentencePiece itself does not print control tokens. For it, the original text must come back.
    const bool reference = !Expected("decoded").is_null();
    const bool changed =
        texts[i].find("<s>") != std::string::npos || texts[i].find("\xE2\x96\x81") != std::string::npos;
    if (reference) {
      EXPECT_EQ(text, Expected("decoded")[i].get<std::string>()) << "text " << i;
    } else if (!changed) {
      EXPECT_EQ(text, texts[i]) << "text " << i;
    }
  }
}

TEST_P(Golden, StreamsWhatDecodeGives) {
  for (const auto& ids : Expected("ids").get<std::vector<Ids>>()) {
    StreamingDecoder decoder(*tokenizer_);
    std::string text;
    for (const int32_t id : ids) text += decoder.Push(id);
    text += decoder.Finish();
    EXPECT_EQ(text, tokenizer_->Decode(ids));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Golden,
                         testing::Values("llama3-json", "tiktoken", "qwen2", "gpt2-json", "llama2-json",
                                         "metaspace-json", "sentencepiece"),
                         [](const auto& info) {
                           std::string name = info.param;
                           name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
                           return name;
                         });

TEST(TokenizerSpecials, FollowTheFiles) {
  const auto llama3 = LoadTokenizer(kTokenizerGoldens / "llama3-json");
  EXPECT_EQ(llama3->Piece(llama3->bos_token()), "<|begin|>");
  EXPECT_EQ(llama3->Piece(llama3->eos_token()), "<|end|>");
  const auto qwen = LoadTokenizer(kTokenizerGoldens / "qwen2");
  EXPECT_EQ(qwen->bos_token(), -1);  // an explicit null in tokenizer_config.json overrides config.json
  EXPECT_EQ(qwen->Piece(qwen->eos_token()), "<|end|>");
  const auto tiktoken = LoadTokenizer(kTokenizerGoldens / "tiktoken");
  EXPECT_EQ(tiktoken->Piece(tiktoken->bos_token()), "<|begin_of_text|>");
  EXPECT_EQ(tiktoken->Piece(tiktoken->bos_token() + 9), "<|eot_id|>");
  EXPECT_EQ(tiktoken->Piece(tiktoken->vocab_size() - 1), "<|reserved_special_token_250|>");
  EXPECT_EQ(tiktoken->Decode(std::vector<int32_t>{tiktoken->bos_token()}, true), "");
}

}  // namespace
}  // namespace shiftrt

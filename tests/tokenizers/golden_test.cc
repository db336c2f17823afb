// SPDX-License-Identifier: Apache-2.0
// Tests against ids and texts of the reference implementations (goldens/make_tokenizers.py).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/temporary_directory.h"
#include "tests/tokenizers/goldens.h"
#include "tests/write_text.h"
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
    // After <extra>, text begins with a space of its own.
    const auto has = [&](const char* part) { return texts[i].find(part) != std::string::npos; };
    const bool changed = has("<s>") || has("<extra>") || has("\xE2\x96\x81");
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

// The ids are those of transformers 5.24 (LlamaTokenizer) for the same directory.
TEST(SentencePieceSettings, TheSpaceBeforeATextFollowsTheFileNextToTheModel) {
  const TemporaryDirectory directory;
  std::filesystem::copy_file(kTokenizerGoldens / "sentencepiece/tokenizer.model", directory.path() / "tokenizer.model");
  const auto load = [&](const char* settings) {
    WriteText(directory.path() / "tokenizer_config.json", settings);
    return LoadTokenizer(directory.path());
  };
  const std::string plain = "the keeper", specials = "<s>the sea</s> the sea";
  for (const char* settings : {R"({"add_prefix_space": false})", R"({"add_prefix_space": false, "legacy": true})",
                               R"({"add_prefix_space": false, "legacy": false})"}) {
    const auto tokenizer = load(settings);
    EXPECT_EQ(tokenizer->Encode(plain), (Ids{447, 260, 441})) << settings;
    EXPECT_EQ(tokenizer->Encode(specials), (Ids{1, 447, 260, 412, 2, 267, 412})) << settings;
    EXPECT_EQ(tokenizer->Encode(" a  b\n c"), (Ids{263, 445, 445, 500, 467, 303})) << settings;
    EXPECT_EQ(tokenizer->Decode(Ids{263, 445, 445, 500}), " a  b");
  }
  for (const char* settings : {"{}", R"({"add_prefix_space": null})", R"({"add_prefix_space": true})",
                               R"({"add_prefix_space": true, "legacy": false})"}) {
    const auto tokenizer = load(settings);
    EXPECT_EQ(tokenizer->Encode(plain), (Ids{267, 441})) << settings;
    EXPECT_EQ(tokenizer->Decode(Ids{263, 445, 445, 500}), "a  b");
  }
  EXPECT_EQ(load(R"({"legacy": false})")->Encode(specials), (Ids{1, 447, 260, 412, 2, 267, 412}));
  // A model without the space in its own settings gets it from the file next to it.
  std::ofstream(directory.path() / "tokenizer.model", std::ios::app) << std::string("\x1A\x02\x18\x00", 4);
  EXPECT_EQ(load("{}")->Encode(plain), (Ids{447, 260, 441}));
  EXPECT_EQ(load(R"({"add_prefix_space": true})")->Encode(plain), (Ids{267, 441}));
}

// The ids are those of transformers 5.24 for the same directories.
TEST(SentencePieceSettings, TheTokenizersOfLlamaFollowThemNextToATokenizerJson) {
  for (const char* golden : {"llama2-json", "metaspace-json"}) {
    const TemporaryDirectory directory;
    std::filesystem::copy_file(kTokenizerGoldens / golden / "tokenizer.json", directory.path() / "tokenizer.json");
    const auto load = [&](const char* settings) {
      WriteText(directory.path() / "tokenizer_config.json", settings);
      return LoadTokenizer(directory.path());
    };
    for (const char* name : {"LlamaTokenizer", "LlamaTokenizerFast"}) {
      const auto tokenizer =
          load(fmt::format(R"({{"tokenizer_class": "{}", "add_prefix_space": false}})", name).c_str());
      EXPECT_EQ(tokenizer->Encode("the keeper"), (Ids{447, 260, 441})) << golden;
      EXPECT_EQ(tokenizer->Encode(" a  b\n c"), (Ids{263, 445, 445, 500, 467, 303})) << golden;
      EXPECT_EQ(tokenizer->Decode(Ids{263, 445, 445, 500}), " a  b") << golden;
    }
    EXPECT_EQ(load(R"({"tokenizer_class": "LlamaTokenizer"})")->Encode("the keeper"), (Ids{267, 441})) << golden;
    EXPECT_EQ(load(R"({"add_prefix_space": false})")->Encode("the keeper"), (Ids{267, 441})) << golden;
  }
}

TEST(SentencePieceSettings, AnEndTokenAfterTheTextIsLeftOutWithANote) {
  const TemporaryDirectory directory;
  std::filesystem::copy_file(kTokenizerGoldens / "sentencepiece/tokenizer.model", directory.path() / "tokenizer.model");
  const auto notes = [&](const char* settings) {
    WriteText(directory.path() / "tokenizer_config.json", settings);
    return LoadTokenizer(directory.path())->notes();
  };
  EXPECT_TRUE(notes(R"({"add_eos_token": false})").empty());
  const std::vector<std::string> found = notes(R"({"add_eos_token": true})");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].find("tokenizer_config.json: add_eos_token puts the end token after a text"), std::string::npos);
}

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

// A tokenizer.json of a few characters. Each test sets the parts that it is about.
class SmallTokenizer : public testing::Test {
 protected:
  std::unique_ptr<Tokenizer> Load(const nlohmann::json& patch) const {
    nlohmann::json root = nlohmann::json::parse(R"({"decoder": {"type": "Fuse"}, "model": {"type": "BPE",
        "vocab": {"|": 0, "a": 1, "b": 2, "-": 3, "ab": 4}, "merges": []}})");
    root.merge_patch(patch);
    WriteText(directory_.path() / "tokenizer.json", root.dump());
    return LoadTokenizer(directory_.path());
  }
  static std::string Pieces(const Tokenizer& tokenizer, const std::string& text) {
    std::string pieces;
    for (const int32_t id : tokenizer.Encode(text)) pieces += tokenizer.Piece(id);
    return pieces;
  }
  static nlohmann::json Added(int32_t id, const std::string& content, bool special) {
    return {{"id", id}, {"content", content}, {"special", special}, {"normalized", false}};
  }

  TemporaryDirectory directory_;
};

// The expected texts are those of tokenizers 0.23.3. Metaspace writes "|" where a word begins.
TEST_F(SmallTokenizer, MatchesJoinThePieceBeforeOrAfter) {
  struct Case {
    nlohmann::json pattern;
    const char* behavior;
    bool invert;
    std::vector<std::string> words;  // one for each of the texts below
  };
  const nlohmann::json dash = {{"String", "-"}}, dashes = {{"Regex", "-+"}}, either = {{"Regex", "[-a]"}};
  const std::vector<Case> cases = {
      {dash, "MergedWithPrevious", false, {"|-|a-|-|b-", "|-|-|ab", "|b", "|-|-"}},
      {dash, "MergedWithPrevious", true, {"|-a|-|-b|-", "|-|-ab", "|b", "|-|-"}},
      {dash, "MergedWithNext", false, {"|-a|-|-b|-", "|-|-ab", "|b", "|-|-"}},
      {dash, "MergedWithNext", true, {"|-|a-|-|b-", "|-|-|ab", "|b", "|-|-"}},
      {dashes, "MergedWithPrevious", false, {"|-|a--|b-", "|--|ab", "|b", "|--"}},
      {dashes, "MergedWithNext", false, {"|-a|--b|-", "|--ab", "|b", "|--"}},
      {either, "MergedWithPrevious", false, {"|-|a|-|-|b-", "|-|-|a|b", "|b", "|-|-"}},
      {either, "MergedWithNext", false, {"|-|a|-|-b|-", "|-|-|ab", "|b", "|-|-"}},
  };
  for (const Case& c : cases) {
    const nlohmann::json split = {
        {"type", "Split"}, {"pattern", c.pattern}, {"behavior", c.behavior}, {"invert", c.invert}};
    const nlohmann::json mark = {
        {"type", "Metaspace"}, {"replacement", "|"}, {"prepend_scheme", "always"}, {"split", false}};
    const auto tokenizer =
        Load({{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", nlohmann::json::array({split, mark})}}}});
    const char* texts[] = {"-a--b-", "--ab", "b", "--"};
    for (size_t i = 0; i < std::size(texts); ++i) EXPECT_EQ(Pieces(*tokenizer, texts[i]), c.words[i]) << split;
  }
}

// The expected ids are those of tokenizers 0.23.3.
TEST_F(SmallTokenizer, CharactersWithoutATokenAreLeftOut) {
  const auto merging = Load({{"model", {{"merges", {"a b"}}}}});
  EXPECT_EQ(merging->Encode("a\x13"
                            "b"),
            (Ids{4}));
  EXPECT_EQ(merging->Encode("\x13"), (Ids{}));
  EXPECT_EQ(merging->Encode("axxb-\x04"), (Ids{4, 3}));
  const auto bytes = Load({{"model", {{"merges", {"a b"}}, {"byte_fallback", true}, {"vocab", {{"<0x13>", 5}}}}}});
  EXPECT_EQ(bytes->Encode("a\x13"
                          "b"),
            (Ids{1, 5, 2}));
  EXPECT_EQ(bytes->Encode("\x04"), (Ids{}));
}

// The expected ids and texts are those of transformers 5.24 for the same changes of llama3-json and qwen2.
class ChangedGolden : public testing::Test {
 protected:
  // `name` with `patch` in its tokenizer_config.json and, unless null, `map` as special_tokens_map.json.
  std::unique_ptr<Tokenizer> Load(const char* name, const nlohmann::json& patch, const nlohmann::json& map = {}) const {
    const TemporaryDirectory directory;
    std::filesystem::copy(kTokenizerGoldens / name, directory.path());
    const auto file = directory.path() / "tokenizer_config.json";
    nlohmann::json config;
    std::ifstream(file) >> config;
    config.merge_patch(patch);
    WriteText(file, config.dump());
    if (!map.is_null()) WriteText(directory.path() / "special_tokens_map.json", map.dump());
    return LoadTokenizer(directory.path());
  }
};

TEST_F(ChangedGolden, TokensThatOnlyHaveANameAreSpecial) {
  const char* const text = "a<|end|>b the morning 'll x";
  const Ids plain = {64, 528, 65, 266, 276, 220, 6, 75, 75, 220, 87};
  const Ids split = {64, 528, 65, 220, 367, 276, 220, 6, 75, 75, 220, 87};
  const nlohmann::json the = {"the"}, extra = {{"additional_special_tokens", the}};
  EXPECT_EQ(Load("llama3-json", {{"pad_token", "<nothere>"}})->Encode(text), plain);
  EXPECT_EQ(Load("llama3-json", {{"pad_token", "the"}})->Encode(text), split);
  EXPECT_EQ(Load("llama3-json", extra)->Encode(text), split);
  EXPECT_EQ(Load("llama3-json", {{"extra_special_tokens", the}})->Encode(text), split);
  EXPECT_EQ(Load("llama3-json", {{"extra_special_tokens", {{"image_token", "the"}}}})->Encode(text), split);
  EXPECT_EQ(Load("llama3-json", nlohmann::json::object(), extra)->Encode(text), split);
  EXPECT_EQ(Load("llama3-json", {{"additional_special_tokens", {"x"}}}, extra)->Encode(text), plain);
  const auto spaces = Load("llama3-json", {{"pad_token", {{"content", "the"}, {"lstrip", true}}}});
  EXPECT_EQ(spaces->Encode(text), (Ids{64, 528, 65, 367, 276, 220, 6, 75, 75, 220, 87}));
  EXPECT_EQ(spaces->Decode(spaces->Encode(text), true), "ab morning 'll x");
  const auto qwen = Load("qwen2", {{"pad_token", "the"}});
  EXPECT_EQ(qwen->Encode(text), (Ids{64, 519, 65, 220, 362, 276, 220, 6, 75, 75, 220, 87}));
}

TEST_F(ChangedGolden, FlagsInTokenizerConfigTakePrecedence) {
  const char* const text = "x  <mask>  y<|end|> z";
  EXPECT_EQ(Load("llama3-json", nlohmann::json::object())->Encode(text), (Ids{87, 529, 88, 528, 220, 89}));
  const nlohmann::json mask = {{"content", "<mask>"}, {"special", true}, {"normalized", false}};
  const auto changed = Load("llama3-json", {{"added_tokens_decoder", {{"529", mask}}}});
  EXPECT_EQ(changed->Encode(text), (Ids{87, 263, 529, 220, 410, 528, 220, 89}));
  EXPECT_EQ(changed->Decode(changed->Encode(text), true), "x    y z");
}

// The expected texts are those of tokenizers 0.23.3.
TEST_F(SmallTokenizer, AddedTokensPassThroughTheDecoder) {
  const nlohmann::json replace = {{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}};
  const nlohmann::json steps = {replace, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  const auto gemma = Load(
      {{"decoder", {{"type", "Sequence"}, {"decoders", steps}}},
       {"added_tokens", {Added(5, "\u2581\u2581", false), Added(6, "<\u2581>", true), Added(7, "<0x41>", false)}}});
  EXPECT_EQ(gemma->Decode(Ids{1, 5, 2, 6, 7}), "a  b< >A");
  EXPECT_EQ(gemma->Decode(Ids{1, 5, 2, 6, 7}, true), "a  bA");
  // In the byte-level alphabet, U+0120 is a space. A token with a character outside the alphabet stays as it is.
  const nlohmann::json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  const auto bytes = Load(
      {{"decoder", byte_level},
       {"pre_tokenizer", byte_level},
       {"added_tokens", {Added(5, "<\u0120>", false), Added(6, "\u2581 \u00E9", true), Added(7, "\u00E9", false)}}});
  EXPECT_EQ(bytes->Decode(Ids{1, 5, 2, 6, 7, 1}),
            "a< >b\u2581 \u00E9\uFFFD"
            "a");
}

}  // namespace
}  // namespace shiftrt

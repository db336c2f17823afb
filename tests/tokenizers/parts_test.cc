// SPDX-License-Identifier: Apache-2.0
// Parts of tokenizer.json, against the ids of the library tokenizers (goldens/make_tokenizer_parts.py).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/check.h"
#include "tests/temporary_directory.h"
#include "tests/tokenizers/goldens.h"
#include "tests/write_text.h"
#include "tokenizers/tokenizer.h"

namespace shiftrt {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

json ReadPartsGolden(const std::filesystem::path& path) {
  json value;
  std::ifstream(path) >> value;
  return value;
}

// Tokenizers of the goldens with other parts.
class TokenizerParts : public testing::Test {
 protected:
  // `parts` replaces keys of tokenizer.json, `config` keys of tokenizer_config.json.
  std::unique_ptr<Tokenizer> Load(const std::string& base, const json& parts, const json& config = json::object()) {
    const auto from = kTokenizerGoldens / base, to = directory_.path() / base;
    std::filesystem::remove_all(to);
    std::filesystem::copy(from, to);
    json root = ReadPartsGolden(from / "tokenizer.json");
    if (!parts.is_null()) root.update(parts);
    WriteText(to / "tokenizer.json", root.dump());
    if (!config.empty()) WriteText(to / "tokenizer_config.json", config.dump());
    return LoadTokenizer(to);
  }
  std::string LoadError(const std::string& base, const json& parts, const json& config = json::object()) {
    try {
      Load(base, parts, config);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  TemporaryDirectory directory_;
};

TEST_F(TokenizerParts, GiveTheIdsOfTheLibrary) {
  const json golden = ReadPartsGolden(kTokenizerGoldens / "parts.json");
  const std::vector<std::string> texts = golden["texts"];
  ASSERT_GT(golden["cases"].size(), 25u);
  for (const json& one : golden["cases"]) {
    SCOPED_TRACE(one["name"]);
    const auto tokenizer = Load(one["base"], one["parts"]);
    for (size_t i = 0; i < texts.size(); ++i)
      EXPECT_EQ(tokenizer->EncodeWithBos(texts[i]), one["ids"][i].get<Ids>())
          << "text " << i << ": '" << texts[i] << "'";
  }
}

// Every part that the library has is either in the table of the documentation or refused by its name.
TEST_F(TokenizerParts, AreThoseOfTheDocumentation) {
  std::ifstream file(TestDirectory().parent_path() / "docs/dev/formats.md");
  const std::string page(std::istreambuf_iterator<char>(file), {});
  const std::pair<const char*, std::vector<const char*>> library[] = {
      {"model", {"BPE", "WordPiece", "WordLevel", "Unigram"}},
      {"normalizer",
       {"BertNormalizer", "Strip", "StripAccents", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Nmt", "Precompiled",
        "Replace", "Prepend", "ByteLevel"}},
      {"pre_tokenizer",
       {"BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Metaspace", "Whitespace", "Split", "Punctuation",
        "WhitespaceSplit", "Digits", "UnicodeScripts", "FixedLength"}},
      {"post_processor", {"RobertaProcessing", "BertProcessing", "ByteLevel", "TemplateProcessing"}},
      {"decoder",
       {"BPEDecoder", "ByteLevel", "WordPiece", "Metaspace", "CTC", "Replace", "Fuse", "Strip", "ByteFallback"}}};
  for (const auto& [key, names] : library) {
    const size_t begin = page.find(std::string("\n| `") + key + "` |");
    ASSERT_NE(begin, std::string::npos) << key;
    const std::string row = page.substr(begin, page.find('\n', begin + 1) - begin);
    for (const std::string name : names) {
      json part = {{"type", name}, {"content", ""}, {"prepend", "_"}, {"pattern", {{"String", "a"}}}};
      if (name == "Strip" && key == std::string("decoder"))  // stands after Fuse
        part = {{"type", "Sequence"},
                {"decoders", {{{"type", "Fuse"}}, {{"type", name}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
      const bool refused =
          LoadError("gpt2-json", {{key, part}}).find("'" + name + "' is not supported") != std::string::npos;
      EXPECT_NE(refused, row.find("`" + name + "`") != std::string::npos) << key << " " << name;
    }
  }
}

json Special(const char* name) { return {{"SpecialToken", {{"id", name}, {"type_id", 0}}}}; }
json Template(const json& single) { return {{"type", "TemplateProcessing"}, {"single", single}}; }
const json kText = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};

TEST_F(TokenizerParts, AnEndTokenAfterATextIsLeftOutAndSaid) {
  const auto plain = Load("llama3-json", {{"post_processor", nullptr}});
  for (const bool begins : {false, true}) {
    json single = {kText, Special("<|end|>")};
    if (begins) single.insert(single.begin(), Special("<|begin|>"));
    const auto tokenizer = Load("llama3-json", {{"post_processor", Template(single)}});
    Ids expected = plain->Encode("the wind");
    if (begins) expected.insert(expected.begin(), tokenizer->bos_token());
    EXPECT_EQ(tokenizer->EncodeWithBos("the wind"), expected);
    ASSERT_EQ(tokenizer->notes().size(), 1u);
    EXPECT_NE(tokenizer->notes()[0].find("puts <|end|> after a text, which is left out"), std::string::npos);
  }
  EXPECT_TRUE(plain->notes().empty());
  EXPECT_NE(
      LoadError("llama3-json", {{"post_processor", Template({kText, kText})}}).find("does not have the text once"),
      std::string::npos);
  EXPECT_NE(LoadError("llama3-json", {{"post_processor", Template({Special("<none>"), kText})}}).find("adds '<none>'"),
            std::string::npos);
}

TEST_F(TokenizerParts, TheTemplateAndNotTheConfigurationSaysWhatIsAdded) {
  const auto tokenizer = Load("llama3-json", {}, {{"bos_token", "<|end|>"}});
  EXPECT_EQ(tokenizer->Piece(tokenizer->bos_token()), "<|end|>");
  EXPECT_EQ(tokenizer->Piece(tokenizer->EncodeWithBos("a").at(0)), "<|begin|>");
}

TEST_F(TokenizerParts, NamesThatAreNotInTheVocabularyAreNoTokens) {
  const auto tokenizer = Load("llama3-json", {}, {{"eos_token", "<none>"}, {"unk_token", "<nor this>"}});
  EXPECT_EQ(tokenizer->eos_token(), -1);
  ASSERT_EQ(tokenizer->notes().size(), 1u);
  EXPECT_NE(tokenizer->notes()[0].find("the eos_token '<none>' is not in the vocabulary"), std::string::npos);
  EXPECT_EQ(tokenizer->EncodeWithBos("the wind"), Load("llama3-json", {})->EncodeWithBos("the wind"));
}

// As in the library, only a character that needs the token is an error.
TEST_F(TokenizerParts, AnUnknownTokenIsMissedWhereItIsNeeded) {
  const json model = {
      {"type", "BPE"}, {"unk_token", "<none>"}, {"vocab", {{"a", 0}, {"b", 1}}}, {"merges", json::array()}};
  const json parts = {{"model", model},           {"added_tokens", json::array()}, {"normalizer", nullptr},
                      {"pre_tokenizer", nullptr}, {"post_processor", nullptr},     {"decoder", {{"type", "Fuse"}}}};
  const auto tokenizer = Load("llama3-json", parts, {{"bos_token", nullptr}});
  EXPECT_EQ(tokenizer->Encode("abba"), (Ids{0, 1, 1, 0}));
  EXPECT_THROW(tokenizer->Encode("abc"), Error);
}

TEST_F(TokenizerParts, WithoutADecoderTextComesBack) {
  for (const char* base : {"llama3-json", "llama2-json"}) {
    const auto tokenizer = Load(base, {{"decoder", nullptr}});
    const std::string text = "The keeper's caf\xC3\xA9 \xE4\xBD\xA0 1234";
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text)), Load(base, {})->Decode(tokenizer->Encode(text))) << base;
    EXPECT_EQ(tokenizer->notes().size(), 1u);
  }
}

TEST_F(TokenizerParts, AUnigramModelIsReadFromTheFileThatItWasMadeFrom) {
  json root = ReadPartsGolden(kTokenizerGoldens / "unigram/tokenizer.json");
  root["model"]["vocab"][200][0] = "another";
  EXPECT_NE(LoadError("unigram", root).find("token 200 is [\"another\""), std::string::npos);
  root["model"]["vocab"].erase(200);
  EXPECT_NE(LoadError("unigram", root).find("369 pieces here and 370 there"), std::string::npos);
  Load("unigram", {});
  std::filesystem::remove(directory_.path() / "unigram/tokenizer.model");
  try {
    LoadTokenizer(directory_.path() / "unigram");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("put that file next to it"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace shiftrt

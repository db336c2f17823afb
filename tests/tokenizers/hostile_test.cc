// SPDX-License-Identifier: Apache-2.0
// Malformed files: each must give an error that names the file, never a crash.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "runtime/check.h"
#include "tests/tokenizers/goldens.h"
#include "tokenizers/tokenizer.h"

namespace shiftrt {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::string Read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class HostileTokenizer : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    directory_ = fs::temp_directory_path() / (std::string("shiftrt-") + test->name() + std::to_string(getpid()));
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  void Write(const std::string& name, const std::string& content) const {
    std::ofstream(directory_ / name, std::ios::binary) << content;
  }

  // The message LoadTokenizer throws; empty if it does not.
  std::string LoadError() const {
    try {
      LoadTokenizer(directory_);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  void ExpectRefused(const std::string& file, const std::string& content, const std::string& message) const {
    Write(file, content);
    const std::string error = LoadError();
    EXPECT_NE(error.find(message), std::string::npos) << "expected: " << message << "\nfound: " << error;
    EXPECT_NE(error.find(directory_.string()), std::string::npos) << error;
  }

  void ExpectJsonRefused(const char* pointer, const json& value, const std::string& message) const {
    json tokenizer = json::parse(Read(kTokenizerGoldens / "llama3-json" / "tokenizer.json"));
    tokenizer[json::json_pointer(pointer)] = value;
    ExpectRefused("tokenizer.json", tokenizer.dump(), message);
  }

  fs::path directory_;
};

TEST_F(HostileTokenizer, NothingThere) { EXPECT_NE(LoadError().find("no tokenizer here"), std::string::npos); }

TEST_F(HostileTokenizer, TokenizerJson) {
  ExpectRefused("tokenizer.json", "", "parse error");
  ExpectRefused("tokenizer.json", "[]", "not a JSON object");
  ExpectRefused("tokenizer.json", "{}", "model");
  ExpectRefused("tokenizer.json", "{\"model\": \"\xFF\"}", "UTF-8");
  ExpectRefused("tokenizer.json", std::string(100000, '['), "nested");
  ExpectJsonRefused("/model/type", "Unigram", "Unigram");
  ExpectJsonRefused("/model/dropout", 0.5, "dropout");
  ExpectJsonRefused("/model/end_of_word_suffix", "</w>", "end_of_word_suffix");
  ExpectJsonRefused("/model/vocab/zzz", 5, "is given to both");
  ExpectJsonRefused("/model/vocab/zzz", -1, "-1");
  ExpectJsonRefused("/model/vocab/zzz", 10000000, "10000000");
  ExpectJsonRefused("/model/vocab/zzz", 18446744073709551615u, "too large");
  ExpectJsonRefused("/model/vocab/zzz", 1.5, "1.5");
  ExpectJsonRefused("/model/vocab/zzz", "1", "not a token id");
  ExpectJsonRefused("/model/merges/0", "a", "not two pieces");
  ExpectJsonRefused("/model/merges/0", json::array({"a", "b", "c"}), "not two pieces");
  ExpectJsonRefused("/model/merges/0", json::array({"qq", "a"}), "not in the vocabulary");
  ExpectJsonRefused("/model/merges", 3, "not two pieces");
}

TEST_F(HostileTokenizer, Components) {
  ExpectJsonRefused("/normalizer", {{"type", "Precompiled"}}, "Precompiled");
  ExpectJsonRefused("/pre_tokenizer", {{"type", "Whitespace"}}, "Whitespace");
  ExpectJsonRefused("/decoder", {{"type", "WordPiece"}}, "WordPiece");
  ExpectJsonRefused("/post_processor", {{"type", "BertProcessing"}}, "BertProcessing");
  ExpectJsonRefused("/added_tokens/0/single_word", true, "single_word");
  ExpectJsonRefused("/added_tokens/0/id", 3, "is given to both");
  ExpectJsonRefused("/added_tokens/0/content", "", "empty");
  const json sequence = {{"Sequence", {{"id", "A"}}}};
  json post = {{"type", "TemplateProcessing"}, {"single", json::array({sequence, sequence})}};
  ExpectJsonRefused("/post_processor", post, "does not have the text once");
  post["single"][0] = {{"SpecialToken", {{"id", "<|end|>"}}}};
  post["special_tokens"]["<|end|>"]["ids"] = {99999};
  ExpectJsonRefused("/post_processor", post, "adds token 99999, which is not in the vocabulary");
  const json bytes = {{"type", "ByteLevel"}};
  ExpectJsonRefused("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", json::array({bytes, bytes})}},
                    "a second ByteLevel");
}

// Each component is a level of calls when text is tokenised, and may make it longer.
TEST_F(HostileTokenizer, ComponentsWithoutEnd) {
  const json metaspace = {{"type", "Metaspace"}, {"replacement", "_"}};
  ExpectJsonRefused("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", json(65, metaspace)}},
                    "65 pretokenizers, at most 64");
  const json longer = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaaaa"}};
  json tokenizer = json::parse(Read(kTokenizerGoldens / "llama3-json" / "tokenizer.json"));
  tokenizer["normalizer"] = {{"type", "Sequence"}, {"normalizers", json(12, longer)}};
  ExpectRefused("tokenizer.json", tokenizer.dump(), "makes more than");  // an added token contains it
  for (json& step : tokenizer["normalizer"]["normalizers"])
    step = {{"type", "Replace"}, {"pattern", {{"String", "~"}}}, {"content", "~~~~~~~~~~"}};
  Write("tokenizer.json", tokenizer.dump());
  const auto read = LoadTokenizer(directory_);
  EXPECT_THROW(read->Encode("~"), Error);
  EXPECT_FALSE(read->Encode("b").empty());
}

// Added tokens may leave ids that no token has, and a model whose vocabulary is larger may choose one of them.
TEST_F(HostileTokenizer, IdsThatNoTokenHasStandForNoText) {
  json tokenizer = json::parse(Read(kTokenizerGoldens / "llama3-json" / "tokenizer.json"));
  const int32_t size = LoadTokenizer(kTokenizerGoldens / "llama3-json")->vocab_size();
  json added = tokenizer["added_tokens"][0];
  added["id"] = size + 5;
  added["content"] = "<far>";
  tokenizer["added_tokens"].push_back(added);
  Write("tokenizer.json", tokenizer.dump());
  const auto read = LoadTokenizer(directory_);
  EXPECT_EQ(read->vocab_size(), size + 6);
  EXPECT_EQ(read->Decode(std::vector<int32_t>{size + 2, size + 5, size + 4}), "<far>");
  EXPECT_THROW(read->Decode(std::vector<int32_t>{size + 6}), Error);
}

TEST_F(HostileTokenizer, Patterns) {
  const auto refused = [&](const std::string& pattern, const std::string& message) {
    ExpectJsonRefused("/pre_tokenizer/pretokenizers/0/pattern/Regex", pattern, message);
  };
  refused("(", "does not compile");
  refused("\\p{Nonsense}", "does not compile");
  refused("a*", "matches the empty text");
  refused("\\w+", "'\\w'");            // matches other characters in PCRE2
  refused("[a&&b]", "not supported");  // a set operation in Oniguruma, letters in PCRE2
  refused("[a[bc]]", "not supported");
  refused("\\p{N}{1,3}+", "'}+'");  // possessive in PCRE2
  refused("$+", "not supported");
  refused("^", "matches the empty text");
  refused("(?m:.)", "not supported");
  refused("a\\", "not supported");
  refused("(*LIMIT_MATCH=1)a", "not supported");
}

TEST_F(HostileTokenizer, PatternsThatRunAwayStop) {
  json tokenizer = json::parse(Read(kTokenizerGoldens / "llama3-json" / "tokenizer.json"));
  tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(?:a+)+[bc]";
  Write("tokenizer.json", tokenizer.dump());
  const auto opened = LoadTokenizer(directory_);
  EXPECT_THROW(opened->Encode(std::string(5000, 'a')), Error);
}

// The template of tokenizer.json says whether BOS is added, and not a flag next to it.
TEST_F(HostileTokenizer, AFlagDoesNotOverruleTheTemplate) {
  fs::copy(kTokenizerGoldens / "llama3-json", directory_);
  const json config = json::parse(Read(directory_ / "tokenizer_config.json"));
  ASSERT_TRUE(LoadTokenizer(directory_)->adds_bos());
  json contradicting = config;
  contradicting["add_bos_token"] = false;
  Write("tokenizer_config.json", contradicting.dump());
  EXPECT_TRUE(LoadTokenizer(directory_)->adds_bos());
  json tokenizer = json::parse(Read(directory_ / "tokenizer.json"));
  tokenizer["post_processor"] = nullptr;
  Write("tokenizer.json", tokenizer.dump());
  contradicting["add_bos_token"] = true;
  Write("tokenizer_config.json", contradicting.dump());
  EXPECT_FALSE(LoadTokenizer(directory_)->adds_bos());
}

TEST_F(HostileTokenizer, VocabAndMerges) {
  fs::copy(kTokenizerGoldens / "qwen2", directory_);
  fs::remove(directory_ / "config.json");
  const std::string config = Read(kTokenizerGoldens / "qwen2" / "tokenizer_config.json");
  ASSERT_EQ(LoadError(), "");
  ExpectRefused("tokenizer_config.json", R"({"tokenizer_class": "BertTokenizer"})", "BertTokenizer");
  ExpectRefused("tokenizer_config.json", R"({"tokenizer_class": 3})", "type");
  ExpectRefused("tokenizer_config.json", R"({"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": true})", "BOS");
  ExpectRefused("tokenizer_config.json",
                R"({"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": true, "bos_token": "<|nope|>"})",
                "'<|nope|>' is not in the vocabulary");
  ExpectRefused("tokenizer_config.json",
                R"({"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": {"x": {"content": "<y>"}}})", "'x'");
  Write("tokenizer_config.json", config);
  ExpectRefused("merges.txt", "#version: 0.2\n\nbroken\n", "line 3");
  ExpectRefused("merges.txt", "a b c\n", "line 1");
  ExpectRefused("merges.txt", "\xFF\xFE a\n", "line 1");
  Write("merges.txt", "");
  ExpectRefused("added_tokens.json", R"({"<x>": 2147483648})", "too large");
  ExpectRefused("added_tokens.json", R"({"<x>": 0})", "is given to both");
}

TEST_F(HostileTokenizer, Tiktoken) {
  const std::string good = Read(kTokenizerGoldens / "tiktoken" / "tokenizer.model");
  Write("tokenizer.model", good);
  ASSERT_EQ(LoadError(), "");
  ExpectRefused("tokenizer.model", "", "empty");
  ExpectRefused("tokenizer.model", "not base64 at all", "line 1");
  ExpectRefused("tokenizer.model", "IQ= 0\n", "base64");
  ExpectRefused("tokenizer.model", "I*== 0\n", "base64");
  ExpectRefused("tokenizer.model", "IQ==\n", "rank");
  ExpectRefused("tokenizer.model", "IQ== -1\n", "-1");
  ExpectRefused("tokenizer.model", "IQ== 99999999999999999999\n", "rank");
  ExpectRefused("tokenizer.model", "IQ== 0\nIg== 0\n", "is given to both");
  ExpectRefused("tokenizer.model", "IQ== 0\nIQ== 1\n", "two ids");
  ExpectRefused("tokenizer.model", "IQ== 0\nIg== 2\n", "missing");
}

TEST_F(HostileTokenizer, SentencePiece) {
  const std::string good = Read(kTokenizerGoldens / "sentencepiece" / "tokenizer.model");
  const auto replaced = [&](std::string_view from, std::string_view to) {
    std::string bad = good;
    return bad.replace(bad.find(from), from.size(), to);
  };
  ExpectRefused("tokenizer.model", replaced("<0x41>", "<0x-1>"), "<0x-1>");
  ExpectRefused("tokenizer.model", replaced("<0x41>", "<0xZZ>"), "<0xZZ>");
  ExpectRefused("tokenizer.model", replaced("<0x41>", "<0x42>"), "two ids");
  ExpectRefused("tokenizer.model",
                replaced("<0x41>", std::string("<0x\0"
                                               "1>",
                                               6)),
                "zero byte");
  ExpectRefused("tokenizer.model", good.substr(0, good.size() / 2), "is truncated");
  ExpectRefused("tokenizer.model", "\n\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", "64 bits");
  ExpectRefused("tokenizer.model", std::string("\n\0", 2), "empty");
}

// With any byte of any file changed, the result is an error or a working tokenizer, also under the sanitizers.
TEST_F(HostileTokenizer, RandomDamage) {
  std::mt19937 random(1);
  for (const char* file : {"tiktoken/tokenizer.model", "sentencepiece/tokenizer.model", "llama2-json/tokenizer.json"}) {
    const std::string good = Read(kTokenizerGoldens / file);
    const std::string name = fs::path(file).filename();
    int works = 0, refused = 0;
    for (int round = 0; round < 60; ++round) {
      std::string bad = good;
      for (int i = 0; i <= round % 3; ++i) bad[random() % bad.size()] = static_cast<char>(random());
      if (round % 4 == 0) bad.resize(random() % bad.size());
      Write(name, bad);
      try {
        const auto tokenizer = LoadTokenizer(directory_);
        tokenizer->Decode(tokenizer->Encode("The keeper's \xE4\xBD\xA0 <s> 123"));
        ++works;
      } catch (const Error& error) {
        EXPECT_STRNE(error.what(), "");
        ++refused;
      }
    }
    EXPECT_GT(works, 0) << file;  // a changed score or piece
    EXPECT_GT(refused, 0) << file;
    fs::remove(directory_ / name);
  }
}

TEST_F(HostileTokenizer, TextAndIds) {
  for (const char* name : {"llama3-json", "sentencepiece"}) {
    const auto tokenizer = LoadTokenizer(kTokenizerGoldens / name);
    for (const char* text : {"\xFF", "a\xC3", "\xED\xA0\x80", "\xC0\x80", "\xF4\x90\x80\x80"})
      EXPECT_THROW(tokenizer->Encode(text), Error);
    for (const int32_t id : {-1, tokenizer->vocab_size(), 2147483647})
      EXPECT_THROW(tokenizer->Decode(std::vector<int32_t>{id}), Error);
  }
}

}  // namespace
}  // namespace shiftrt

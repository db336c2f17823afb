// SPDX-License-Identifier: Apache-2.0
// Tokenizers in GGUF files against those of the directories that they were made from, and what is refused.
#include "tokenizers/gguf.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/runtime/gguf_bytes.h"
#include "tests/runtime/refusal.h"
#include "tests/temporary_directory.h"
#include "tests/test_directory.h"
#include "tests/write_text.h"
#include "tokenizers/pretokenizer.h"

namespace shiftrt {
namespace {

using nlohmann::json;

const std::filesystem::path kGoldens = TestDirectory() / "goldens";

json ReadJson(const std::filesystem::path& path) {
  json value;
  std::ifstream(path) >> value;
  return value;
}

std::vector<std::string> Texts() { return ReadJson(kGoldens / "tokenizers/expected.json")["texts"]; }

// The parts of a byte-level BPE tokenizer as GGUF has them.
struct Bpe {
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
  uint32_t begin = 0, end = 0;

  void Set(size_t id, const std::string& token, int32_t type) {
    if (id >= tokens.size()) tokens.resize(id + 1);
    types.resize(tokens.size(), 1);
    tokens[id] = token;
    types[id] = type;
  }
  GgufBytes File(const std::string& pre) const {
    GgufBytes file;
    file.Add("tokenizer.ggml.model", "gpt2")
        .Add("tokenizer.ggml.pre", pre)
        .Add("tokenizer.ggml.tokens", tokens)
        .Add("tokenizer.ggml.token_type", types)
        .Add("tokenizer.ggml.merges", merges);
    if (begin != end) file.Add("tokenizer.ggml.bos_token_id", begin);
    return file.Add("tokenizer.ggml.eos_token_id", end);
  }
};

Bpe ReadBpe(const std::string& name) {
  const json root = ReadJson(kGoldens / "tokenizers" / name / "tokenizer.json");
  Bpe bpe;
  for (const auto& [token, id] : root["model"]["vocab"].items()) bpe.Set(id, token, 1);
  for (const json& merge : root["model"]["merges"])
    bpe.merges.push_back(merge.is_string() ? merge.get<std::string>()
                                           : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  for (const json& token : root["added_tokens"]) bpe.Set(token["id"], token["content"], token["special"] ? 3 : 4);
  return bpe;
}

class GgufTokenizer : public testing::Test {
 protected:
  std::filesystem::path Path() const { return directory_.path() / "model.gguf"; }
  std::unique_ptr<Tokenizer> Load(const GgufBytes& file) const {
    WriteText(Path(), file.Bytes());
    return LoadTokenizer(Path());
  }
  void ExpectRefused(const GgufBytes& file, const std::string& word) const {
    ExpectRefusal([&] { Load(file); }, Path().string(), word);
  }
  // The same tokenizer from the files that a model directory is given.
  std::unique_ptr<Tokenizer> Rewritten() const {
    const auto directory = directory_.path() / "files";
    std::filesystem::create_directory(directory);
    for (const auto& [name, text] : GgufTokenizerFiles(GgufFile(Path()))) WriteText(directory / name, text);
    return LoadTokenizer(directory);
  }
  // `left_out`: texts with it meet something that GGUF cannot express.
  void ExpectSame(const Tokenizer& found, const Tokenizer& expected, const std::string& left_out) const {
    EXPECT_EQ(found.bos_token(), expected.bos_token());
    EXPECT_EQ(found.eos_token(), expected.eos_token());
    EXPECT_EQ(found.adds_bos(), expected.adds_bos());
    EXPECT_EQ(found.vocab_size(), expected.vocab_size());
    int compared = 0;
    for (const std::string& text : Texts()) {
      if (text.find(left_out) != std::string::npos) continue;
      const auto ids = expected.EncodeWithBos(text);
      EXPECT_EQ(found.EncodeWithBos(text), ids) << text;
      EXPECT_EQ(found.Decode(ids), expected.Decode(ids)) << text;
      EXPECT_EQ(found.Decode(ids, true), expected.Decode(ids, true)) << text;
      ++compared;
    }
    EXPECT_GT(compared, 30);
  }
  TemporaryDirectory directory_;
};

TEST_F(GgufTokenizer, AnEndTokenAfterATextIsLeftOutAndSaid) {
  const Bpe bpe = ReadBpe("llama3-json");
  const auto plain = Load(bpe.File("llama3")),
             ends = Load(bpe.File("llama3").Add("tokenizer.ggml.add_eos_token", true));
  EXPECT_EQ(ends->EncodeWithBos("the wind"), plain->EncodeWithBos("the wind"));
  EXPECT_TRUE(plain->notes().empty());
  ASSERT_EQ(ends->notes().size(), 1u);
  EXPECT_NE(ends->notes()[0].find("add_eos_token puts the end token after a text"), std::string::npos);
}

// The golden has the steps of llama.cpp's default, for the same merges.
TEST_F(GgufTokenizer, AFileThatNamesNoPreTokenizerIsOfTheDefault) {
  const Bpe bpe = ReadBpe("gpt2-json");
  const json golden = ReadJson(kGoldens / "tokenizers/parts.json");
  for (const auto& [pre, name] : {std::pair("", "default"),
                                  {"default", "default"},
                                  {"deepseek-coder", "deepseek-coder"},
                                  {"gpt-4o", "o200k"},
                                  {"hunyuan-dense", "deepseek-v3"}}) {
    SCOPED_TRACE(pre);
    int compared = 0;
    const auto found = Load(bpe.File(pre));
    EXPECT_EQ(found->notes().size(), *pre == 0 ? 1u : 0u);
    for (const json& one : golden["cases"]) {
      if (one["name"] != name) continue;
      ++compared;
      for (size_t i = 0; i < golden["texts"].size(); ++i)
        EXPECT_EQ(found->Encode(golden["texts"][i].get<std::string>()), one["ids"][i].get<std::vector<int32_t>>()) << i;
      if (name != std::string("deepseek-v3")) continue;
      std::vector<std::string> patterns;  // an export finds the name by them
      for (const json& step : one["parts"]["pre_tokenizer"]["pretokenizers"])
        if (step["type"] == "Split") patterns.push_back(step["pattern"]["Regex"]);
      const GgufPreTokenizer* const row = FindGgufPreTokenizer(patterns, false, false);
      ASSERT_NE(row, nullptr);
      EXPECT_STREQ(row->name, pre);
    }
    EXPECT_EQ(compared, 1);
  }
}

TEST_F(GgufTokenizer, Llama3) {
  Bpe bpe = ReadBpe("llama3-json");
  const auto expected = LoadTokenizer(kGoldens / "tokenizers/llama3-json");
  bpe.begin = expected->bos_token();
  bpe.end = expected->eos_token();
  // A token that takes the spaces next to it has no expression in GGUF.
  ExpectSame(*Load(bpe.File("llama-bpe")), *expected, "<mask>");
  ExpectSame(*Rewritten(), *expected, "<mask>");
  EXPECT_TRUE(Load(bpe.File("llama3"))->adds_bos());
  EXPECT_FALSE(Load(bpe.File("llama3").Add("tokenizer.ggml.add_bos_token", false))->adds_bos());
}

// The pre-tokenizers of further families, each with the steps that the family's own tokenizer.json has.
TEST_F(GgufTokenizer, OtherFamilies) {
  struct Case {
    const char *name, *pattern;
    bool nfc, digits, whole_words, adds_bos;
  };
  for (const Case& c : {Case{"olmo", kGpt2Pattern, false, false, false, false},
                        {"starcoder", kGpt2Pattern, false, true, false, false},
                        {"refact", kGpt2Pattern, false, true, false, false},
                        {"command-r", kGpt2Pattern, true, true, false, false},
                        {"chatglm-bpe", kLlama3Pattern, false, false, false, false},
                        {"glm4", kLlama3Pattern, false, false, true, false},
                        {"lfm2", kLlama3Pattern, false, false, true, true},
                        {"gpt-4o", kO200kPattern, false, false, false, false},
                        {"tekken", kTekkenPattern, false, false, true, true}}) {
    json root = ReadJson(kGoldens / "tokenizers/llama3-json/tokenizer.json");
    json steps = json::array();
    if (c.digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", c.pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
    steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
    root["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
    root["normalizer"] = c.nfc ? json{{"type", "NFC"}} : json();
    root["model"]["ignore_merges"] = c.whole_words;
    root["post_processor"] = nullptr;
    const auto directory = directory_.path() / c.name;
    std::filesystem::create_directory(directory);
    WriteText(directory / "tokenizer.json", root.dump());
    const auto expected = LoadTokenizer(directory);
    Bpe bpe = ReadBpe("llama3-json");
    const auto llama3 = LoadTokenizer(kGoldens / "tokenizers/llama3-json");
    bpe.begin = llama3->bos_token();
    bpe.end = llama3->eos_token();
    const auto found = Load(bpe.File(c.name));
    EXPECT_EQ(found->adds_bos(), c.adds_bos) << c.name;
    const auto rewritten = Rewritten();
    int compared = 0;
    for (const std::string& text : Texts()) {
      if (text.find("<mask>") != std::string::npos) continue;
      EXPECT_EQ(found->Encode(text), expected->Encode(text)) << c.name << ": " << text;
      EXPECT_EQ(rewritten->Encode(text), expected->Encode(text)) << c.name << ": " << text;
      ++compared;
    }
    EXPECT_GT(compared, 30);
    const GgufPreTokenizer* const row = FindGgufPreTokenizer({c.pattern}, c.digits, c.whole_words);
    ASSERT_NE(row, nullptr) << c.name;
    EXPECT_EQ(row->name == std::string("tekken"), c.pattern == kTekkenPattern);
  }
}

TEST_F(GgufTokenizer, Qwen2) {
  const auto directory = kGoldens / "tokenizers/qwen2";
  const auto expected = LoadTokenizer(directory);
  Bpe bpe;
  const json vocabulary = ReadJson(directory / "vocab.json");
  for (const auto& [token, id] : vocabulary.items()) bpe.Set(id, token, 1);
  std::ifstream merges(directory / "merges.txt");
  for (std::string line; std::getline(merges, line);)
    if (!line.starts_with("#version") && !line.empty()) bpe.merges.push_back(line);
  const json added = ReadJson(directory / "added_tokens.json");
  for (const auto& [token, id] : added.items()) bpe.Set(id, token, token == "<|end|>" ? 3 : 4);
  bpe.begin = bpe.end = expected->eos_token();
  ExpectSame(*Load(bpe.File("qwen2")), *expected, "<none>");
  ExpectSame(*Rewritten(), *expected, "<none>");
}

// SmolLM's: digits one by one, then GPT-2's pattern. GPT-2's alone is without the first step.
TEST_F(GgufTokenizer, SmolLmAndGpt2) {
  Bpe bpe = ReadBpe("gpt2-json");
  bpe.types[bpe.end] = 3;  // a directory whose eos_token is a piece has a special token there
  for (const bool digits : {true, false}) {
    SCOPED_TRACE(digits);
    json root = ReadJson(kGoldens / "tokenizers/gpt2-json/tokenizer.json");
    json steps = json::array();
    if (digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
    steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}});
    root["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
    const TemporaryDirectory directory;
    WriteText(directory.path() / "tokenizer.json", root.dump());
    WriteText(directory.path() / "tokenizer_config.json", json{{"eos_token", bpe.tokens[0]}}.dump());
    const auto expected = LoadTokenizer(directory.path());
    ExpectSame(*Load(bpe.File(digits ? "smollm" : "gpt-2")), *expected, "<none>");
    ExpectSame(*Rewritten(), *expected, "<none>");
  }
}

// goldens/make_gguf.py took the pieces out of the SentencePiece model.
TEST_F(GgufTokenizer, SentencePiece) {
  std::filesystem::copy_file(kGoldens / "gguf/sentencepiece.gguf", Path());
  const auto expected = LoadTokenizer(kGoldens / "tokenizers/sentencepiece");
  ExpectSame(*LoadTokenizer(Path()), *expected, "<none>");
  ExpectSame(*Rewritten(), *expected, "<none>");
}

TEST_F(GgufTokenizer, TheFilesSayThatNoSpaceIsAdded) {
  const std::vector<std::string> tokens = {"<unk>", "a"};
  const auto config = [&](bool space) {
    Load(GgufBytes()
             .Add("tokenizer.ggml.model", "llama")
             .Add("tokenizer.ggml.tokens", tokens)
             .Add("tokenizer.ggml.token_type", std::vector<int32_t>{2, 1})
             .Add("tokenizer.ggml.scores", std::vector<float>{0, 0})
             .Add("tokenizer.ggml.add_bos_token", false)
             .Add("tokenizer.ggml.add_space_prefix", space));
    return json::parse(GgufTokenizerFiles(GgufFile(Path())).at("tokenizer_config.json"));
  };
  EXPECT_EQ(config(false).value("add_prefix_space", true), false);
  EXPECT_FALSE(config(true).contains("add_prefix_space"));
  EXPECT_EQ(config(true).value("legacy", false), true);
}

// llama.cpp's converter writes Gemma's vocabulary like this: <unk> is a control token, and runs of spaces are
// user-defined tokens with plain spaces.
TEST_F(GgufTokenizer, VocabulariesAsTheConverterWritesThem) {
  const auto load = [&](int32_t unknown_type, const std::string& run) {
    return Load(GgufBytes()
                    .Add("tokenizer.ggml.model", "llama")
                    .Add("tokenizer.ggml.tokens", std::vector<std::string>{"<s>", "<unk>", "a", "\u2581", run})
                    .Add("tokenizer.ggml.token_type", std::vector<int32_t>{3, unknown_type, 1, 1, 4})
                    .Add("tokenizer.ggml.scores", std::vector<float>{0, 0, -1, -2, 0})
                    .Add("tokenizer.ggml.bos_token_id", uint32_t{0})
                    .Add("tokenizer.ggml.unknown_token_id", uint32_t{1})
                    .Add("tokenizer.ggml.add_space_prefix", false));
  };
  for (const int32_t unknown_type : {2, 3}) {
    for (const std::string run : {"  ", "\u2581\u2581"}) {
      const std::vector<int32_t> ids = {0, 2, 4, 2, 3, 2, 1};
      EXPECT_EQ(load(unknown_type, run)->EncodeWithBos("a  a ab"), ids) << unknown_type << run;
      EXPECT_EQ(Rewritten()->EncodeWithBos("a  a ab"), ids) << unknown_type << run;
    }
  }
}

TEST_F(GgufTokenizer, ChatTemplate) {
  const Bpe bpe = ReadBpe("gpt2-json");
  Load(bpe.File("gpt-2").Add("tokenizer.chat_template", "{{ messages }}"));
  EXPECT_EQ(GgufChatTemplate(GgufFile(Path())), "{{ messages }}");
  EXPECT_EQ(json::parse(GgufTokenizerFiles(GgufFile(Path())).at("tokenizer_config.json"))["chat_template"],
            "{{ messages }}");
  Load(bpe.File("gpt-2"));
  EXPECT_EQ(GgufChatTemplate(GgufFile(Path())), "");
  Load(bpe.File("gpt-2").Add("tokenizer.chat_template", "\xFF"));
  ExpectRefusal([&] { GgufChatTemplate(GgufFile(Path())); }, Path().string(), "not valid UTF-8");
}

TEST_F(GgufTokenizer, WhatIsWrongIsNamed) {
  const Bpe good = ReadBpe("gpt2-json");
  EXPECT_FALSE((WriteText(Path(), GgufBytes().Bytes()), HasTokenizer(Path())));
  ExpectRefused(GgufBytes().Add("tokenizer.ggml.model", "t5"), "t5 is not supported (known: gpt2, llama)");
  ExpectRefused(good.File("viking"), "tokenizer.ggml.pre viking is not supported (known: llama-bpe");
  ExpectRefused(GgufBytes().Add("tokenizer.ggml.model", "gpt2"), "tokenizer.ggml.tokens is missing");
  ExpectRefused(good.File("gpt-2").Add("tokenizer.ggml.bos_token_id", 1u << 30), "expected 0 to");
  Bpe bad = good;
  bad.types.pop_back();
  ExpectRefused(bad.File("gpt-2"), "elements for");
  bad = good;
  bad.types[3] = 7;
  ExpectRefused(bad.File("gpt-2"), "token 3 is of type 7, expected 1 to 6");
  bad.types[3] = -1;
  ExpectRefused(bad.File("gpt-2"), "token 3 is of type -1");
  bad = good;
  bad.tokens[4] = bad.tokens[9];
  ExpectRefused(bad.File("gpt-2"), "has two ids, 4 and 9");
  bad.tokens[4] = "\xFF";
  ExpectRefused(bad.File("gpt-2"), "token 4 is not valid UTF-8");
  bad.tokens[4] = "";
  ExpectRefused(bad.File("gpt-2"), "token 4 is empty");
  bad = good;
  bad.merges.emplace_back("no-such piece");
  ExpectRefused(bad.File("gpt-2"), "is not in the vocabulary");
  bad.merges.back() = "one";
  ExpectRefused(bad.File("gpt-2"), "is not two pieces");
  bad.merges.back() = "on\x90";
  ExpectRefused(bad.File("gpt-2"), "is not valid UTF-8: on\\x90");
}

// Other readers take these for bytes without a check: "<0x41" cut short, invalid digits, numbers above 255.
TEST_F(GgufTokenizer, ByteTokensThatAreNone) {
  const auto file = [](const std::string& token) {
    GgufBytes bytes;
    bytes.Add("tokenizer.ggml.model", "llama")
        .Add("tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "<s>", "</s>", token})
        .Add("tokenizer.ggml.scores", std::vector<float>{0, 0, 0, 0})
        .Add("tokenizer.ggml.token_type", std::vector<int32_t>{2, 3, 3, 6});
    return bytes;
  };
  for (const char* token : {"<0x4", "<0x-1>", "<0x100>", "<0xGG>", "<0x4 >", "A"})
    ExpectRefused(file(token), "says it is a byte but is");
  GgufBytes few;
  few.Add("tokenizer.ggml.model", "llama")
      .Add("tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "<s>", "</s>"})
      .Add("tokenizer.ggml.scores", std::vector<float>{0});
  ExpectRefused(few, "tokenizer.ggml.scores has 1 elements for 3 tokens");
}

}  // namespace
}  // namespace shiftrt

// SPDX-License-Identifier: Apache-2.0
// Malformed texts: documents of every type, compressed or not; tokenizers, chat templates, and answers of a hub.
#include <nlohmann/json.hpp>

#include "hub/client.h"
#include "runtime/random.h"
#include "tests/compressed.h"
#include "tests/hostile/hostile.h"
#include "tests/test_directory.h"
#include "text/documents.h"
#include "tokenizers/jinja.h"
#include "tokenizers/tokenizer.h"

namespace shiftrt::hostile {
namespace {

// The only file in the directory that a test made, or the one that a case put in its place.
std::string AllDocuments(const fs::path& file) {
  const Documents documents = Documents::Read(file);
  std::string all;
  std::vector<int64_t> order;
  for (int64_t i = 0; i < documents.size(); ++i) order.push_back(i);
  Documents::InOrder reader(documents, order);
  for (const int64_t index : order) {
    const std::string text = reader.Next().text;
    EXPECT_EQ(text, documents.Text(index));
    all += fmt::format("{}: {}\n", index, text);
  }
  return all + documents.hash();
}

Reader DocumentsIn(const char* file, const std::string& content) {
  return {[=](const fs::path& directory) { WriteText(directory / file, content); },
          [=](const fs::path& directory) { return AllDocuments(directory / file); }};
}

const std::string kLines =
    "{\"text\": \"one\"}\n\n{\"text\": \"two \\u00e9\"}\r\n{\"instruction\": \"a\", \"output\": \"b\"}";

TEST(HostileText, JsonLines) {
  static constexpr const char* kFile = "t.jsonl";
  CheckReader(DocumentsIn(kFile, kLines),
              {{"an empty file", Text(kFile, ""), {kFile, "empty"}},
               {"blank lines alone", Text(kFile, "\n \n\n"), {kFile, "empty"}},
               {"a line that is no JSON", Longer(kFile, "\n{oops"), {"t.jsonl:5: "}},
               {"a line that is no object", Longer(kFile, "\n[1]"), {"t.jsonl:5: ", "expected an object"}},
               {"a line without text", Longer(kFile, "\n{\"txt\": 1}"), {"t.jsonl:5: ", "\"text\""}},
               {"a text that is no text", Longer(kFile, "\n{\"text\": 1}"), {"t.jsonl:5: ", "\"text\""}},
               {"a key twice", Longer(kFile, "\n{\"text\": \"a\", \"text\": \"b\"}"), {"t.jsonl:5: ", "duplicate"}},
               {"invalid UTF-8", Longer(kFile, "\n{\"text\": \"\xFF\"}"), {"t.jsonl:5: "}},
               {"a zero byte", Longer(kFile, std::string("\n{\"text\": \"\0\"}", 14)), {"t.jsonl:5: "}},
               {"a file that ends in a line", Cut(kFile, 0.95), {"t.jsonl:4: "}},
               {"a deep nest", Longer(kFile, "\n{\"text\": " + std::string(100'000, '[')), {"t.jsonl:5: ", "nested"}},
               {"a directory",
                [](const fs::path& directory) {
                  fs::remove(directory / kFile);
                  fs::create_directory(directory / kFile);
                },
                {kFile}}});
}

TEST(HostileText, Json) {
  static constexpr const char* kFile = "t.json";
  CheckReader(DocumentsIn(kFile, "[{\"text\": \"one\"}, {\"text\": \"two\"}]"),
              {{"no JSON", Text(kFile, "[[["), {kFile}},
               {"no list", Text(kFile, "3"), {kFile, "expected an array"}},
               {"an empty list", Text(kFile, "[]"), {kFile, "expected an array"}},
               {"a row that is no object", Text(kFile, "[{\"text\": \"one\"}, 2]"), {"t.json: row 1"}},
               {"a file that ends early", Cut(kFile, 0.9), {kFile}}});
}

TEST(HostileText, Compressed) {
  for (const bool gzip : {true, false}) {
    const auto packed = [&](const std::string& text) { return gzip ? Gzip(text) : Zstd(text); };
    const char* const file = gzip ? "t.jsonl.gz" : "t.jsonl.zst";
    const Reader reader = DocumentsIn(file, packed(kLines));
    EXPECT_EQ(AllDocuments([&] {
                static const TemporaryDirectory directory;
                WriteText(directory.path() / "t.jsonl", kLines);
                return directory.path() / "t.jsonl";
              }()),
              [&] {
                const TemporaryDirectory directory;
                reader.make(directory.path());
                return reader.read(directory.path());
              }());
    const std::string place = std::string(file) + ":5: ";
    CheckReader(reader,
                {{"a stream that ends early", Cut(file, 0.7), {file, "truncated"}},
                 {"bytes after the stream", Longer(file, "more bytes"), {file, "damaged"}},
                 {"a changed bit in the stream", Flipped(file, 12), {file}},
                 {"nothing once decompressed", Text(file, packed("")), {file, "empty"}},
                 {"a line that is no object", Text(file, packed(kLines + "\n3")), {place}},
                 {"a bad line", Text(file, packed(kLines + "\n{oops")), {place}},
                 {"a line of 100 MB", Text(file, packed(std::string(100 << 20, ' '))), {file, ":1: ", "64 MiB"}},
                 {"a name of another type",
                  [&](const fs::path& directory) {
                    fs::rename(directory / file, directory / "x");
                    WriteText(directory / file, ReadFile(directory / "x"));
                  },
                  {}}});
  }
}

// Random documents are the same from a plain file, a .gz and a .zst, in any order, with one hash.
TEST(HostileText, ValidDocumentsSurvive) {
  const TemporaryDirectory directory;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Random random(seed);
    std::string lines;
    std::vector<std::string> texts;
    for (int64_t i = random.Below(3000); i >= 0; --i) {
      std::string text(random.Below(200), 'x');
      for (char& c : text) c = static_cast<char>('a' + random.Below(26));
      if (random.Below(9) == 0) lines += "  \n";
      lines += Json{{"text", text + "\xE4\xBD\xA0"}}.dump() + "\n";
      texts.push_back(text + "\xE4\xBD\xA0");
    }
    std::vector<int64_t> order(texts.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
    for (size_t i = 0; i < order.size(); ++i) std::swap(order[i], order[random.Below(std::ssize(order))]);
    std::string hash;
    for (const auto& [name, bytes] : {std::pair("a.jsonl", lines),
                                      {"a.jsonl.gz", Gzip(lines)},
                                      {"a.jsonl.zst", Zstd(lines)},
                                      {"a.json", lines},
                                      {"a.json.gz", Gzip(lines)}}) {
      WriteText(directory.path() / name, bytes);
      const Documents documents = Documents::Read(directory.path() / name);
      ASSERT_EQ(documents.size(), std::ssize(texts)) << name;
      if (hash.empty()) hash = documents.hash();
      EXPECT_EQ(documents.hash(), hash) << name;
      Documents::InOrder reader(documents, order);
      for (const int64_t index : order) EXPECT_EQ(reader.Next().text, texts[index]) << name;
    }
  }
}

TEST(HostileText, Parquet) {
  static constexpr const char* kFile = "t.parquet";
  const std::string good = ReadFile(TestDirectory() / "goldens/parquet/lines.parquet");
  CheckReader(DocumentsIn(kFile, good),
              {{"an empty file", Text(kFile, ""), {kFile}},
               {"another file", Text(kFile, std::string(100, 'x')), {kFile, "Parquet"}},
               {"a file that ends early", Cut(kFile, 0.9), {kFile}},
               {"bytes after the file", Longer(kFile, "more"), {kFile}},
               {"no column of texts", Text(kFile, ReadFile(TestDirectory() / "goldens/parquet/map.parquet")), {kFile}},
               {"no rows", Text(kFile, ReadFile(TestDirectory() / "goldens/parquet/empty.parquet")), {kFile}}});
}

Reader Tokenizers(const char* golden) {
  return {[=](const fs::path& directory) {
            for (const auto& entry : fs::directory_iterator(TestDirectory() / "goldens/tokenizers" / golden))
              fs::copy_file(entry.path(), directory / entry.path().filename());
          },
          [](const fs::path& directory) {
            const auto tokenizer = LoadTokenizer(directory);
            return fmt::format(
                "{}", fmt::join(tokenizer->EncodeWithBos("The keeper's \xE4\xBD\xA0  1234\n\n caf\xC3\xA9"), " "));
          }};
}

TEST(HostileText, TokenizerJson) {
  static constexpr const char* kFile = "tokenizer.json";
  const auto set = [&](const char* pointer, const Json& value) { return Set(kFile, pointer, value); };
  CheckReader(Tokenizers("llama3-json"),
              {{"no JSON", Text(kFile, "BPE"), {kFile, "JSON"}},
               {"a file that ends early", Cut(kFile, 0.5), {kFile}},
               {"another model", set("/model/type", "WordPiece"), {kFile, "WordPiece"}},
               {"a vocabulary that is a list", set("/model/vocab", Json::array()), {kFile, "vocab"}},
               {"an id below zero", set("/model/vocab/!", -1), {kFile}},
               {"an id of 2^40", set("/model/vocab/!", int64_t{1} << 40), {kFile}},
               {"an id twice", set("/model/vocab/!", 1), {kFile}},
               {"a merge of pieces that are not there", set("/model/merges/0", "QQ QQ"), {kFile, "QQ"}},
               {"a merge of one piece", set("/model/merges/0", "a"), {kFile, "merge"}},
               {"another normalizer", set("/normalizer", {{"type", "Precompiled"}}), {kFile, "Precompiled"}},
               {"another pre-tokenizer", set("/pre_tokenizer", {{"type", "Bert"}}), {kFile, "Bert"}},
               {"no file", Without(kFile), {"tokenizer"}}});
}

TEST(HostileText, SentencePiece) {
  static constexpr const char* kFile = "tokenizer.model";
  CheckReader(Tokenizers("sentencepiece"), {{"an empty file", Text(kFile, ""), {kFile}},
                                            {"another file", Text(kFile, std::string(200, 'x')), {kFile}},
                                            {"a file that ends early", Cut(kFile, 0.5), {kFile}},
                                            {"no file", Without(kFile), {"tokenizer"}}});
}

TEST(HostileText, ChatTemplate) {
  static constexpr const char* kFile = "chat";
  const Reader reader = {
      [](const fs::path& directory) {
        WriteText(directory / kFile, "{% for m in messages %}\n{{ m.role }}: {{ m.content }}\n{% endfor %}");
      },
      [](const fs::path& directory) {
        static const auto variables = nlohmann::ordered_json::parse(
            R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
        return JinjaTemplate(ReadFile(directory / kFile), kFile).Render(variables, 0);
      }};
  CheckReader(reader,
              {{"a tag that is not closed", Cut(kFile, 0.9), {"chat:"}},
               {"a brace that is not closed", Text(kFile, "{{ messages"), {"chat:1:"}},
               {"an unknown tag", Text(kFile, "\n\n{% include 'x' %}"), {"chat:3:", "include"}},
               {"an unknown filter", Text(kFile, "{{ messages|pprint }}"), {"chat:1:", "pprint"}},
               {"an attribute of the interpreter", Text(kFile, "{{ ''.__class__.__mro__ }}"), {"chat:1:", "__class__"}},
               {"a loop without end",
                Text(kFile, "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"),
                {"chat:1:"}},
               {"a text without end",
                Text(kFile,
                     "{% set ns = namespace(t='x') %}{% for i in range(60) %}{% set ns.t = ns.t + ns.t %}{% endfor "
                     "%}{{ ns.t }}"),
                {"chat:1:"}},
               {"a message that a terminal obeys", Text(kFile, "{{ raise_exception('\x1b[2Jx') }}"), {"\\x1b[2Jx"}},
               {"a template of 2 MB", Text(kFile, std::string(2 << 20, 'x')), {"chat"}}});
}

TEST(HostileText, Listing) {
  static constexpr const char* kFile = "listing";
  const Json good = {
      {"sha", std::string(40, 'c')},
      {"id", "org/model"},
      {"siblings",
       {{{"rfilename", "config.json"}, {"size", 27}, {"blobId", std::string(40, 'a')}},
        {{"rfilename", "a/model.safetensors"}, {"size", 50}, {"lfs", {{"sha256", std::string(64, 'd')}}}}}}};
  const Reader reader = {[=](const fs::path& directory) { WriteText(directory / kFile, good.dump()); },
                         [](const fs::path& directory) {
                           const Listing listing =
                               ParseListing(ReadFile(directory / kFile), *ParseRepository("org/model"), "example.org");
                           std::string all = listing.id + listing.commit;
                           for (const RemoteFile& file : listing.files)
                             all += fmt::format(" {} {} {}", file.path, file.size, file.checksum);
                           return all;
                         }};
  const auto set = [&](const char* pointer, const Json& value) { return Set(kFile, pointer, value); };
  CheckReader(
      reader,
      {{"no JSON", Text(kFile, "<html>"), {"org/model", "JSON"}},
       {"no listing", Text(kFile, "{}"), {"org/model", "example.org", "no listing"}},
       {"a commit that is none", set("/sha", "main"), {"org/model", "main"}},
       {"a commit that leaves the cache", set("/sha", "../../../../../../../../../../etc/passwd1234"), {"org/model"}},
       {"a name that leaves the cache", set("/siblings/0/rfilename", "../../x"), {"org/model", "../../x"}},
       {"an absolute name", set("/siblings/0/rfilename", "/etc/passwd"), {"org/model", "/etc/passwd"}},
       {"a name that a terminal obeys", set("/siblings/0/rfilename", "../\x1b[2J"), {"org/model", "\\x1b[2J"}},
       {"a name that is no text", set("/siblings/0/rfilename", 3), {"org/model", "without a name"}},
       {"a size of 2^62", set("/siblings/0/size", uint64_t{1} << 62), {"config.json", "bytes"}},
       {"a size of 2^64 - 1", set("/siblings/0/size", ~uint64_t{0}), {"config.json", "bytes"}},
       {"another name that is none", set("/id", "../../x"), {}},
       {"a key without meaning", set("/likes", 3), {}}});
}

}  // namespace
}  // namespace shiftrt::hostile

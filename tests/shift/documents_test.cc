// SPDX-License-Identifier: Apache-2.0
#include "text/documents.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <future>
#include <string>
#include <string_view>
#include <vector>

#include "tests/runtime/refusal.h"
#include "tests/temporary_directory.h"
#include "text/prompts.h"

namespace shiftrt {
namespace {

namespace fs = std::filesystem;

class TextFiles : public testing::Test {
 protected:
  fs::path Write(const std::string& name, std::string_view text) {
    fs::create_directories((directory_.path() / name).parent_path());
    std::ofstream(directory_.path() / name, std::ios::binary) << text;
    return directory_.path() / name;
  }
  static std::vector<std::string> Texts(const fs::path& file) {
    const Documents documents = Documents::Read(file);
    std::vector<std::string> texts;
    for (int64_t i = 0; i < documents.size(); ++i) texts.push_back(documents.Text(i));
    return texts;
  }
  static void ExpectRefused(const fs::path& file, const std::string& word) {
    ExpectRefusal([&] { Texts(file); }, file.string(), word);
    ExpectRefusal([&] { RunningText(file); }, file.string(), word);
  }
  // Returns what `read` makes of a pipe into which another thread writes `text`.
  template <typename Read>
  auto ThroughPipe(const std::string& text, Read&& read) {
    const fs::path pipe = directory_.path() / "pipe";
    fs::remove(pipe);
    EXPECT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    auto writer = std::async(std::launch::async, [&] { std::ofstream(pipe, std::ios::binary) << text; });
    auto result = read(pipe);
    writer.get();
    return result;
  }

  const TemporaryDirectory directory_;
};

// A row of GSM8K is written as lm-evaluation-harness writes it; as a prompt it is the question.
TEST_F(TextFiles, ARowMayHaveAQuestionAndAnAnswer) {
  const fs::path lines = Write("a.jsonl", "{\"question\": \"1 + 1?\", \"answer\": \"It is 2.\"}\n");
  const fs::path table = Write("a.csv", "id,question,answer\n7,1 + 1?,It is 2.\n");
  for (const fs::path& file : {lines, table}) {
    const Documents::Document document = Documents::Read(file).At(0);
    EXPECT_EQ(document.text, "Question: 1 + 1?\nAnswer: It is 2.") << file;
    EXPECT_EQ(document.text.substr(document.prompt), " It is 2.");
    EXPECT_EQ(ReadPrompts(file.string(), true), std::vector<std::string>{"1 + 1?"});
    EXPECT_EQ(ReadPrompts(file.string(), false), std::vector<std::string>{"Question: 1 + 1?\nAnswer:"});
  }
  EXPECT_EQ(Texts(Write("b.jsonl", R"({"text": "one", "question": "two", "answer": "three"})")),
            std::vector<std::string>{"one"});
  ExpectRefused(Write("c.jsonl", R"({"question": "two", "answer": 3})"), "\"question\" and \"answer\"");
}

TEST_F(TextFiles, ANullColumnIsOneThatIsNotThere) {
  const std::vector<std::string> wanted = Texts(Write("a.jsonl", R"({"instruction": "Add.", "output": "3"})"));
  EXPECT_EQ(Texts(Write("b.jsonl", R"({"instruction": "Add.", "input": null, "output": "3"})")), wanted);
  EXPECT_EQ(Texts(Write("c.json", R"([{"instruction": "Add.", "input": null, "output": "3", "text": null}])")), wanted);
  EXPECT_EQ(Texts(Write("d.jsonl", R"({"instruction": "Add.", "input": NaN, "output": "3"})")), wanted);
  for (const char* empty : {"null", "\"\""}) {
    const std::string row = fmt::format(R"({{"text": "one", "instruction": {0}, "input": {0}, "output": {0}}})", empty);
    EXPECT_EQ(Texts(Write("e.jsonl", row)), std::vector<std::string>{"one"});
  }
  ExpectRefusal([&] { Texts(Write("f.jsonl", "{\"text\": \"one\"}\n{\"text\": null}\n")); },
                (directory_.path() / "f.jsonl:2").string(), "it has \"text (null)\"");
  ExpectRefusal([&] { Texts(Write("g.jsonl", R"({"instruction": "Add.", "output": null})")); },
                (directory_.path() / "g.jsonl:1").string(), "\"output (null)\"");
}

TEST_F(TextFiles, NumbersThatJsonDoesNotHaveAreNoErrorWhereNobodyReadsThem) {
  EXPECT_EQ(Texts(Write("a.jsonl", R"({"a": NaN, "text": "NaN \"Infinity\" -Infinity", "b": [-Infinity, Infinity]})")),
            std::vector<std::string>{"NaN \"Infinity\" -Infinity"});
  EXPECT_EQ(Texts(Write("b.json", R"([{"a": NaN, "text": "one"}])")), std::vector<std::string>{"one"});
  ExpectRefused(Write("c.jsonl", R"({"text": NaN})"), "\"text (null)\"");
  ExpectRefused(Write("d.jsonl", R"({"a": xNaN, "text": "one"})"), "not valid JSON");
}

TEST_F(TextFiles, TablesAreReadByTheirColumns) {
  const std::vector<std::string> wanted = {"one, \"two\"\nlines", "three"};
  EXPECT_EQ(Texts(Write("a.csv", "id,text\r\n1,\"one, \"\"two\"\"\nlines\"\r\n2,three\r\n")), wanted);
  EXPECT_EQ(Texts(Write("a.tsv", "\xEF\xBB\xBFid\ttext\n1\t\"one, \"\"two\"\"\nlines\"\n2\tthree\n")), wanted);
  EXPECT_EQ(RunningText(directory_.path() / "a.csv"), wanted[0] + "\n\n" + wanted[1]);
  EXPECT_EQ(Texts(Write("b.csv", "instruction,input,output\nAdd.,,3\n")),
            Texts(Write("b.jsonl", R"({"instruction": "Add.", "output": "3"})")));
  EXPECT_EQ(Texts(Write("c.csv", "instruction,text,output\n,one,\n")), std::vector<std::string>{"one"});
  ExpectRefused(Write("d.csv", "id,content\n1,one\n"), "it has the columns \"id\", \"content\"");
  ExpectRefused(Write("e.csv", "id,text\n1,one\n2\n"), "e.csv:3: 1 columns, and the first line names 2");
  ExpectRefused(Write("f.csv", "text\n"), "no rows");
  ExpectRefusal([&] { Texts(Write("g.tsv", "id\ttext\n1\t\n")); }, (directory_.path() / "g.tsv").string(), "row 0");
}

TEST_F(TextFiles, TheColumnsThatAreThereAreNamed) {
  ExpectRefused(Write("a.jsonl", R"({"prompt": "one", "completion": "two"})"), "\"completion\", \"prompt\"");
  ExpectRefused(Write("b.jsonl", R"({"messages": [{"role": "user", "content": "one"}]})"), "chat template");
  ExpectRefused(Write("c.jsonl", "{}"), "it has no columns");
}

TEST_F(TextFiles, OtherFormatsAreNoPlainText) {
  ExpectRefused(Write("a.jsonl.bz2", "BZh91AY"), "bzip2");
  ExpectRefused(Write("a.txt.xz", std::string_view("\xFD\x37zXZ\0\0", 7)), "xz");
  ExpectRefused(Write("a.zip", "PK\x03\x04"), "ZIP");
  ExpectRefused(Write("a.arrow", std::string_view("ARROW1\0\0", 8)), "to_parquet");
  ExpectRefused(Write("b.arrow", "\xFF\xFF\xFF\xFFx"), "to_parquet");
  ExpectRefused(Write("a.data", "PAR1xxxx"), "extension .parquet");
  ExpectRefused(Write("a.txt", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"),
                "a Git LFS pointer in the place of a file of 12345 bytes");
}

TEST_F(TextFiles, ADirectoryIsNamedWithAFileInIt) {
  Write("shards/b.parquet", "");
  Write("shards/a.parquet", "");
  ExpectRefused(directory_.path() / "shards", "such as " + (directory_.path() / "shards/a.parquet").string());
  Write("saved/data-00000-of-00001.arrow", "");
  Write("saved/state.json", "{}");
  ExpectRefused(directory_.path() / "saved", "save_to_disk");
  fs::create_directory(directory_.path() / "empty");
  ExpectRefused(directory_.path() / "empty", "expected a file with text");
}

TEST_F(TextFiles, ATextComesFromAPipe) {
  const auto running = [](const fs::path& pipe) { return RunningText(pipe); };
  const auto texts = [](const fs::path& pipe) { return Texts(pipe); };
  const std::string large(300'000, 'x');  // more than a pipe holds
  EXPECT_EQ(ThroughPipe("one\ntwo\n", running), "one\ntwo\n");
  EXPECT_EQ(ThroughPipe(large, running), large);
  EXPECT_EQ(ThroughPipe("[1] is no JSON", texts), std::vector<std::string>{"[1] is no JSON"});
  const std::vector<std::string> rows = {"one", "two"};
  EXPECT_EQ(ThroughPipe("{\"text\": \"one\"}\n{\"text\": \"two\"}\n", texts), rows);
  EXPECT_EQ(ThroughPipe("[{\"text\": \"one\"}, {\"text\": \"two\"}]", texts), rows);
  EXPECT_EQ(ThroughPipe("", [](const fs::path& pipe) { return Refusal([&] { RunningText(pipe); }); }),
            (directory_.path() / "pipe").string() + ": the text is empty; from a pipe, a text can be read only once");
  EXPECT_EQ(ResolveText("-"), "/dev/stdin");
}

}  // namespace
}  // namespace shiftrt

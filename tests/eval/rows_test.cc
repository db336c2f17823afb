// SPDX-License-Identifier: Apache-2.0
#include "eval/rows.h"

#include <gtest/gtest.h>

#include "eval/dataset.h"
#include "runtime/files.h"
#include "tests/runtime/refusal.h"
#include "tests/temporary_directory.h"
#include "tests/test_directory.h"

namespace shiftrt {
namespace {

namespace fs = std::filesystem;

void Write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  AtomicFile out(file);
  out.Write(text);
  out.Commit();
}

template <typename Call>
void ExpectRefused(Call&& call, const std::string& word) {
  const std::string what = Refusal(call);
  EXPECT_NE(what.find(word), std::string::npos) << "expected " << word << ", found: " << what;
}

const Task& TaskNamed(const std::string& name) { return *ParseTasks(name)[0]; }

TEST(Rows, JsonLinesSkipBlankLinesAndKeepTheirNumbers) {
  const auto rows = ParseRows("{\"a\": \"x\"}\r\n\n  \n{\"a\": \"\\u00e9\"}", "f.jsonl", {});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].where(), "f.jsonl:4");
  EXPECT_EQ(rows[1].Text("a"), "\u00e9");
}

TEST(Rows, CsvQuotesLineEndsAndHeaders) {
  const std::string text = "question,A,answer\n\"a \"\"b\"\"\nc\",\"1,2\",B\r\nplain,,C";
  for (const auto& columns : {std::vector<std::string>{}, std::vector<std::string>{"x", "y", "z"}}) {
    const auto rows = ParseRows(text, "f.csv", columns);
    ASSERT_EQ(rows.size(), 2u);
    EXPECT_EQ(rows[0].Text("question"), "a \"b\"\nc");
    EXPECT_EQ(rows[0].Text("A"), "1,2");
    EXPECT_EQ(rows[1].where(), "f.csv:4");
    EXPECT_EQ(rows[1].Text("A"), "");
  }
  const auto bare = ParseRows("\xEF\xBB\xBFq,1,B\n", "f.csv", {"x", "y", "z"});
  ASSERT_EQ(bare.size(), 1u);
  EXPECT_EQ(bare[0].Text("x"), "q");
}

TEST(Rows, AWikiTextFileIsCutAtTitles) {
  const auto rows = ParseRows(" \n = One = \n a \n = = Part = = \n = Two = \n b", "w.raw", {});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].Text("page"), " = One = \n a \n = = Part = = ");
  EXPECT_EQ(rows[1].Text("page"), " = Two = \n b");
  EXPECT_EQ(rows[1].where(), "w.raw:5");
}

TEST(Rows, MalformedFilesAreRefusedWithTheirLine) {
  const auto parse = [](const char* text, const char* name) { return [=] { ParseRows(text, name, {"x", "y"}); }; };
  ExpectRefused(parse("{}\n{", "f.jsonl"), "f.jsonl:2");
  ExpectRefused(parse("[1]", "f.jsonl"), "f.jsonl:1: not a JSON object");
  ExpectRefused(parse("a,b\nc\n", "f.csv"), "f.csv:2: 1 columns, expected 2");
  ExpectRefused(parse("a,\"b\nc\n", "f.csv"), "f.csv:1: a quoted field has no end");
  ExpectRefused(parse("a,\"b\"c\n", "f.csv"), "f.csv:1: text after a quoted field");
  ExpectRefused(parse("a,\xff\n", "f.csv"), "not valid UTF-8");
  ExpectRefused(parse("", "f.parquet"), "f.parquet");
}

// Each row is all right but for one thing.
TEST(Rows, ABadRowIsNamedByFileAndLine) {
  struct Case {
    const char *task, *file, *row, *message;
  };
  const Case cases[] = {
      {"boolq", "boolq_validation.jsonl", R"({"question": "q", "label": 1})", ":1: column passage is missing"},
      {"boolq", "boolq_validation.jsonl", R"({"question": "q", "passage": "p", "label": 2})", "expected 0 to 1"},
      {"boolq", "boolq_validation.jsonl", R"({"question": "q", "passage": "p", "answer": "yes"})", "true or false"},
      {"boolq", "boolq_validation.jsonl", R"({"question": 5, "passage": "p", "label": 1})",
       "column question is number"},
      {"piqa", "piqa_validation.jsonl", R"({"goal": "g", "sol1": "a", "sol2": "b"})", "column label is missing"},
      {"hellaswag", "hellaswag_val.jsonl",
       R"({"activity_label": "a", "ctx_a": "b", "ctx_b": "c", "endings": ["x", 1], "label": "0"})", "list of at least"},
      {"hellaswag", "hellaswag_val.jsonl",
       R"({"activity_label": "a", "ctx_a": "b", "ctx_b": "c", "endings": ["x", "y"], "label": "2"})",
       "expected 0 to 1"},
      {"winogrande", "winogrande_validation.jsonl",
       R"({"sentence": "none", "option1": "a", "option2": "b", "answer": "1"})", "no blank"},
      {"winogrande", "winogrande_validation.jsonl",
       R"({"sentence": "_", "option1": "a", "option2": "b", "answer": ""})", "expected 1 to 2"},
      {"arc_easy", "arc_easy_test.jsonl",
       R"({"question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "C"})", "answerKey C"},
      {"arc_easy", "arc_easy_test.jsonl",
       R"({"question": "q", "choices": {"text": ["a", "b", "c"], "label": ["A", "B"]}, "answerKey": "A"})",
       "3 choices"},
      {"openbookqa", "openbookqa_test.jsonl", R"({"question": {"stem": "q", "choices": "a"}, "answerKey": "A"})",
       "question.choices"},
      {"mmlu", "mmlu/test/anatomy_test.csv", "q,a,b,c,d,E", "expected 0 to 3"},
      {"cmmlu", "cmmlu/test/alchemy.csv", "q,a,b,c,d,A", "alchemy is no subject"},
      {"lambada", "lambada_openai.jsonl", R"({"text": "one"})", "single word"},
      {"gsm8k", "gsm8k_test.jsonl", R"({"question": "q"})", "column answer is missing"},
      {"gsm8k", "gsm8k_test.jsonl", R"({"question": "q", "answer": 5})", "column answer is number"},
      {"gsm8k", "gsm8k_test.jsonl", R"({"question": ["q"], "answer": "#### 5"})", "column question is array"},
      {"gsm8k", "gsm8k_test.jsonl", R"({"question": "q", "answer": "####5"})", "no \"#### \" before a number"},
      {"gsm8k_cot", "gsm8k_test.jsonl", R"({"question": "q", "answer": "5"})", "no \"####\" before a number"},
      {"gsm8k_cot", "gsm8k_test.jsonl", R"({"question": "q", "target": 5})", "column target is number"},
      {"humaneval", "humaneval.jsonl", R"({"entry_point": "f", "test": "def check(f): pass"})",
       "column prompt is missing"},
      {"humaneval", "humaneval.jsonl", R"x({"prompt": "def f(x):", "entry_point": 5, "test": "def check(f): pass"})x",
       "column entry_point is number"},
      {"humaneval", "humaneval.jsonl",
       R"x({"prompt": "def f(x):", "entry_point": "f(", "test": "def check(f): pass"})x", "the name of a function"},
      {"humaneval", "humaneval.jsonl", R"x({"prompt": "def g(x):", "entry_point": "f", "test": "def check(f): pass"})x",
       "column prompt does not define f"},
      {"humaneval_instruct", "humaneval.jsonl", R"x({"prompt": "def f(x):", "entry_point": "f", "test": "f(1)"})x",
       "column test does not define check"},
  };
  for (const Case& c : cases) {
    const TemporaryDirectory directory;
    Write(directory.path() / c.file, c.row);
    const auto load = [&] {
      LoadDataset(TaskNamed(c.task), {.data = {directory.path().string()}, .shots = 0, .allow_code = true});
    };
    ExpectRefused(load, c.message);
    ExpectRefused(load, fs::path(c.file).filename().string() + ":1");
  }
}

std::vector<Item> Load(const std::string& task, const fs::path& directory, int64_t shots = 0) {
  return LoadDataset(TaskNamed(task), {.data = {directory.string()}, .shots = shots}).items;
}

// The original releases' rows give the prompts of Hugging Face's.
TEST(Rows, OriginalReleasesAreTheSame) {
  const TemporaryDirectory hub, release;
  const std::string choices = R"("choices": {"text": ["a", "b"], "label": ["A", "B"]})";
  Write(hub.path() / "arc_easy_test.jsonl", R"({"question": "q?", )" + choices + R"(, "answerKey": "B"})");
  Write(hub.path() / "openbookqa_test.jsonl", R"({"question_stem": "q", )" + choices + R"(, "answerKey": "B"})");
  Write(hub.path() / "boolq_validation.jsonl", R"({"question": "q", "passage": "T -- p", "label": 1})");
  Write(hub.path() / "piqa_validation.jsonl", R"({"goal": "g", "sol1": "a", "sol2": "b", "label": 1})");
  Write(hub.path() / "mmlu/test/anatomy_test.csv", "question,choice0,choice1,choice2,choice3,answer\nq,a,b,c,d,3\n");
  Write(hub.path() / "cmmlu/test/logical.csv", ",Question,A,B,C,D,Answer\n0,q,a,b,c,d,D\n");
  const std::string listed = R"("choices": [{"text": "a", "label": "A"}, {"text": "b", "label": "B"}])";
  Write(release.path() / "ARC-Easy/ARC-Easy-Test.jsonl",
        R"({"id": "1", "question": {"stem": "q?", )" + listed + R"(}, "answerKey": "B"})");
  Write(release.path() / "openbookqa/test.jsonl",
        R"({"question": {"stem": "q", )" + listed + R"(}, "answerKey": "B"})");
  Write(release.path() / "boolq/dev.jsonl", R"({"question": "q", "title": "T", "answer": true, "passage": "p"})");
  Write(release.path() / "piqa/valid.jsonl", R"({"goal": "g", "sol1": "a", "sol2": "b"})");
  Write(release.path() / "piqa/valid-labels.lst", "1\n");
  Write(release.path() / "mmlu/test/anatomy_test.csv", "q,a,b,c,d,D\n");
  Write(release.path() / "cmmlu/test/logical.csv", "q,a,b,c,d,D\n");
  for (const char* task : {"arc_easy", "openbookqa", "boolq", "piqa", "mmlu", "cmmlu"}) {
    const Item a = Load(task, hub.path()).at(0), b = Load(task, release.path()).at(0);
    EXPECT_EQ(a.gold, b.gold) << task;
    ASSERT_EQ(a.prompts.size(), b.prompts.size()) << task;
    for (size_t i = 0; i < a.prompts.size(); ++i) {
      EXPECT_EQ(a.prompts[i].context, b.prompts[i].context) << task;
      EXPECT_EQ(a.prompts[i].continuation, b.prompts[i].continuation) << task;
    }
  }
  Write(release.path() / "boolq/val.jsonl", R"({"question": "q", "passage": "T -- p", "label": true})");  // SuperGLUE
  EXPECT_EQ(Load("boolq", release.path()).at(0).gold, 1);
  EXPECT_EQ(Load("boolq", release.path()).at(0).prompts[0].context, Load("boolq", hub.path()).at(0).prompts[0].context);
  Write(release.path() / "piqa/valid-labels.lst", "1\n0\n");
  ExpectRefused([&] { Load("piqa", release.path()); }, "more lines");
}

// The hub's form of a data set gives the items of the same rows as JSON.
TEST(Rows, ParquetIsRead) {
  const TemporaryDirectory directory;
  const auto golden = TestDirectory() / "goldens";
  std::filesystem::copy_file(golden / "parquet/arc_easy_test.parquet",
                             directory.path() / "arc_easy_test-00000-of-00001.parquet");
  const auto parquet = Load("arc_easy", directory.path()), json = Load("arc_easy", golden / "eval/data");
  ASSERT_EQ(parquet.size(), json.size());
  for (size_t i = 0; i < json.size(); ++i) {
    EXPECT_EQ(parquet[i].gold, json[i].gold);
    ASSERT_EQ(parquet[i].prompts.size(), json[i].prompts.size());
    EXPECT_EQ(parquet[i].prompts[0].context, json[i].prompts[0].context);
    EXPECT_EQ(parquet[i].prompts[0].continuation, json[i].prompts[0].continuation);
  }
}

// Numbers of JSON are unsigned, those of Parquet are signed.
TEST(Rows, AnIndexIsAnyWholeNumberInItsRange) {
  const auto index = [](const nlohmann::json& value) {
    return Row(nlohmann::json{{"label", value}}, "here").Index("label", 2);
  };
  EXPECT_EQ(index(int64_t{1}), 1);
  EXPECT_EQ(index(uint64_t{1}), 1);
  EXPECT_EQ(index("1"), 1);
  for (const nlohmann::json& value :
       {nlohmann::json(-1), nlohmann::json(2), nlohmann::json(UINT64_MAX), nlohmann::json(1.0), nlohmann::json(true)})
    ExpectRefused([&] { index(value); }, "expected 0 to 1");
}

// A task whose rows are those of the golden required.parquet, {"n": 1, "t": "a"} and {"n": 2, "t": "b"} with an int64.
Task ParquetTask(const fs::path& file) {
  Task task;
  task.files = {fs::path(file).replace_extension(".jsonl").string()};
  task.by_subject = true;
  task.read = [](const Row& row) -> Example {
    return {.contexts = {row.Text("t")}, .answers = {"x", "y"}, .gold = row.Index("n", 2, /*first=*/1)};
  };
  task.sample = R"({"subject": "s", "n": 1, "t": "a"})";
  return task;
}

TEST(Rows, AParquetFileOrItsFolderNamesTheSubject) {
  for (const char* file :
       {"mmlu/test/anatomy.parquet", "mmlu/test/anatomy_test.parquet", "mmlu/test/anatomy_test-00000-of-00001.parquet",
        "anatomy/test/0000.parquet", "anatomy/test-00000-of-00001.parquet", "anatomy/test-00000-of-00002-a1b2.parquet",
        "anatomy/test/test-00000-of-00001.parquet"}) {
    const TemporaryDirectory directory;
    fs::create_directories((directory.path() / file).parent_path());
    fs::copy_file(TestDirectory() / "goldens/parquet/required.parquet", directory.path() / file);
    const auto items = LoadDataset(ParquetTask(file), {.data = {directory.path().string()}}).items;
    ASSERT_EQ(items.size(), 2u) << file;
    EXPECT_EQ(items[0].subject, "anatomy") << file;
    EXPECT_EQ(items[0].gold, 0) << file;
    EXPECT_EQ(items[1].gold, 1) << file;
  }
}

TEST(Rows, ASubjectThatIsThereTwiceIsRefused) {
  const TemporaryDirectory directory;
  Write(directory.path() / "mmlu/test/anatomy_test.csv", "q,a,b,c,d,D\n");
  Write(directory.path() / "mmlu/test/virology_test.csv.gz", "q,a,b,c,d,D\n");
  EXPECT_EQ(Load("mmlu", directory.path()).size(), 2u);
  Write(directory.path() / "mmlu/test/anatomy_test.csv.gz", "q,a,b,c,d,D\n");
  ExpectRefused([&] { Load("mmlu", directory.path()); }, "anatomy_test.csv.gz differ only in their compression");
}

// The reference divides the scores of WinoGrande by the lengths of its choices, which are the texts up to the blank.
TEST(Rows, LengthsAreThoseOfTheChoices) {
  const TemporaryDirectory directory;
  Write(directory.path() / "winogrande_validation.jsonl",
        R"({"sentence": "So _ was big.", "option1": "it", "option2": "caf\u00e9", "answer": "1"})");
  Write(directory.path() / "winogrande_train.jsonl",
        "{\"sentence\": \"Yes _ is.\", \"option1\": \"x\", \"option2\": \"y\", \"answer\": \"1\"}\n"
        "{\"sentence\": \"No _ is.\", \"option1\": \"x\", \"option2\": \"y\", \"answer\": \"2\"}\n");
  for (const int64_t shots : {0, 1}) {
    const Item item = Load("winogrande", directory.path(), shots).at(0);
    EXPECT_EQ(item.units, (std::vector<int64_t>{5, 7})) << shots;
    EXPECT_EQ(item.bytes, (std::vector<int64_t>{5, 8})) << shots;
    EXPECT_EQ(item.answer_bytes, (std::vector<int64_t>{8, 8})) << shots;
  }
}

TEST(Rows, SettingsOutOfRangeAreRefused) {
  const TemporaryDirectory directory;
  const std::string row = R"({"question": "q", "passage": "p", "label": 1})";
  Write(directory.path() / "boolq_validation.jsonl", row);
  Write(directory.path() / "boolq_train.jsonl", row + "\n" + row);
  const std::vector<std::string> data = {directory.path().string()};
  EXPECT_THROW(LoadDataset(TaskNamed("boolq"), {.data = data, .limit = -1}), UsageError);
  EXPECT_THROW(LoadDataset(TaskNamed("boolq"), {.data = data, .shots = -1}), UsageError);
  EXPECT_EQ(Load("boolq", directory.path(), 1).size(), 1u);
  Write(directory.path() / "gsm8k_test.jsonl", R"({"question": "q", "answer": "#### 5"})");
  ExpectRefused([&] { Load("gsm8k_cot", directory.path(), 8); }, "`scripts/gsm8k-cot-shots DIR` writes its shots");
  Write(directory.path() / "gsm8k_cot_shots.jsonl", R"({"question": "q", "target": "The answer is 1."})");
  ExpectRefused([&] { Load("gsm8k_cot", directory.path(), 8); }, "8 shots, but the file of shots has 1");
  ExpectRefused([&] { Load("boolq", directory.path(), 2); }, "2 shots are drawn from at least 3 rows, and there are 2");
}

TEST(Rows, WhatIsNotThereIsSaid) {
  const TemporaryDirectory directory;
  ExpectRefused([&] { Load("piqa", directory.path()); }, "piqa_validation*.jsonl");
  ExpectRefused([&] { Load("piqa", directory.path() / "none"); }, "neither a directory");
  Write(directory.path() / "piqa_validation-00000.parquet", "PAR1");
  ExpectRefused([&] { Load("piqa", directory.path()); }, "piqa_validation-00000.parquet: 4 bytes are no Parquet file");
  Write(directory.path() / "piqa_validation.jsonl", "\n");
  ExpectRefused([&] { Load("piqa", directory.path()); }, "no rows");
  Write(directory.path() / "piqa_validation_2.jsonl", "\n");
  ExpectRefused([&] { Load("piqa", directory.path()); }, "several files");
  Write(directory.path() / "lambada_openai.jsonl", R"({"text": "one two"})");
  EXPECT_THROW(Load("lambada", directory.path(), 1), UsageError);
  EXPECT_THROW(ParseTasks("piqa,nonsense"), UsageError);
  ExpectRefused([&] { ParseTasks(""); }, "none is named");
  EXPECT_EQ(ParseTasks("paper7").size(), 7u);
  // "all" is without the tasks of replies.
  const auto all = ParseTasks("piqa,all");
  EXPECT_EQ(all.size(), 11u);
  EXPECT_EQ(Tasks().size(), 15u);
  for (const Task* task : all) EXPECT_NE(task->kind, TaskKind::kReply) << task->name;
  EXPECT_EQ(ParseTasks("all,gsm8k").size(), 12u);
}

}  // namespace
}  // namespace shiftrt

// SPDX-License-Identifier: Apache-2.0
#include "text/calibration.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>

#include "runtime/check.h"
#include "tests/test_directory.h"
#include "text/documents.h"

namespace shiftrt {
namespace {

// Numbers its tokens 0, 1, 2, ...: a token a byte, so that a sample tells where it was cut.
class CountingTokenizer : public Tokenizer {
 public:
  std::vector<int32_t> Encode(std::string_view text) const override {
    std::vector<int32_t> ids(text.size());
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
    return ids;
  }
  std::string Decode(std::span<const int32_t>, bool) const override { return {}; }
  std::string Piece(int32_t) const override { return {}; }
  int32_t vocab_size() const override { return INT32_MAX; }
};

// A token is a byte, so that samples spell the text.
class ByteTokenizer : public CountingTokenizer {
 public:
  std::vector<int32_t> Encode(std::string_view text) const override {
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    return {bytes, bytes + text.size()};
  }
};

std::string Spelled(const std::vector<Batch>& batches) {
  std::string text;
  for (const Batch& batch : batches)
    for (int32_t token : batch.tokens) text += static_cast<char>(token);
  return text;
}

class CalibrationText : public testing::Test {
 protected:
  ~CalibrationText() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path Write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(directory_);
    std::ofstream(directory_ / name) << text;
    return directory_ / name;
  }
  static CalibrationSet Load(const CalibrationSpec& spec, const Tokenizer& tokenizer, uint64_t seed) {
    return LoadCalibration(spec, tokenizer, seed, CalibrationBatchTokens(Device::kCpu));
  }

  std::string LoadError(const std::filesystem::path& file, int64_t tokens = 4) {
    try {
      Load({file, 8, tokens}, tokenizer_, 0);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  CountingTokenizer tokenizer_;
  ByteTokenizer bytes_;
  std::filesystem::path directory_ =
      std::filesystem::temp_directory_path() /
      (std::string("shiftrt_calibration_") + testing::UnitTest::GetInstance()->current_test_info()->name() + "_" +
       std::to_string(getpid()));
};

// First tokens of all samples of these batches; every sample must be `tokens` consecutive ones.
std::vector<int32_t> Starts(const std::vector<Batch>& batches, int64_t tokens, int64_t batch_tokens) {
  std::vector<int32_t> starts;
  for (const Batch& batch : batches) {
    EXPECT_LE(batch.size(), std::max(tokens, batch_tokens));
    for (int64_t s = 0; s < batch.sequences(); ++s) {
      const int64_t begin = batch.offsets[s];
      EXPECT_EQ(batch.offsets[s + 1] - begin, tokens);
      for (int64_t i = 0; i < tokens; ++i) EXPECT_EQ(batch.tokens[begin + i], batch.tokens[begin] + i);
      starts.push_back(batch.tokens[begin]);
    }
  }
  return starts;
}

TEST_F(CalibrationText, SamplesAreSeededDisjointAndInTextOrder) {
  const auto file = Write("a.txt", std::string(10003, 'x'));
  const CalibrationSet set = LoadCalibration({file, 20, 100}, tokenizer_, 7, 350);
  const std::vector<int32_t> fit = Starts(set.fit, 100, 350), heldout = Starts(set.heldout, 100, 350);
  EXPECT_EQ(set.fit_tokens, 1800);
  EXPECT_EQ(set.heldout_tokens, 200);
  EXPECT_EQ(fit.size(), 18u);
  EXPECT_EQ(set.fit.size(), 6u);  // three samples a batch
  EXPECT_TRUE(std::is_sorted(fit.begin(), fit.end()));
  std::set<int32_t> all(fit.begin(), fit.end());
  all.insert(heldout.begin(), heldout.end());
  EXPECT_EQ(all.size(), 20u);
  for (int32_t start : all) EXPECT_EQ(start % 100, 0);
  EXPECT_GT(*all.rbegin(), 5000);  // from all of the text, not its beginning

  EXPECT_EQ(Starts(Load({file, 20, 100}, tokenizer_, 7).fit, 100, 2048), fit);
  EXPECT_NE(Starts(Load({file, 20, 100}, tokenizer_, 8).fit, 100, 2048), fit);
  EXPECT_EQ(set.source, "a.txt, 20 samples x 100 tokens");
  EXPECT_EQ(set.hash.size(), 16u);
}

TEST_F(CalibrationText, TakesWhatThereIsAndSaysSo) {
  const CalibrationSet set = Load({Write("a.txt", std::string(35, 'x')), 256, 10}, tokenizer_, 0);
  EXPECT_EQ(Starts(set.fit, 10, 2048), (std::vector<int32_t>{0, 10}));
  EXPECT_EQ(Starts(set.heldout, 10, 2048), (std::vector<int32_t>{20}));
  EXPECT_EQ(set.source, "a.txt, 3 samples x 10 tokens (all there is; 256 asked for)");
  // The number that is asked for takes no memory.
  EXPECT_EQ(Load({directory_ / "a.txt", 1'000'000'000, 10}, tokenizer_, 0).fit_tokens, 20);
}

TEST_F(CalibrationText, IsCountedWithoutTheText) {
  for (const int64_t samples : {1, 2, 7, 8, 9, 40}) {
    const CalibrationSet set =
        LoadCalibration({Write("a.txt", std::string(4000, 'x')), samples, 100}, tokenizer_, 7, 350);
    const CalibrationCounts counts = CountCalibration(samples, 100, 350);
    EXPECT_EQ(counts.fit_samples * 100, set.fit_tokens) << samples;
    EXPECT_EQ(counts.heldout_samples * 100, set.heldout_tokens) << samples;
    EXPECT_EQ(counts.fit_batches, std::ssize(set.fit)) << samples;
    EXPECT_EQ(counts.heldout_batches, std::ssize(set.heldout)) << samples;
    EXPECT_EQ(counts.samples_per_batch, 3);
  }
  EXPECT_EQ(CountCalibration(4, 3000, 2048).fit_batches, 3);  // a sample that is longer than a batch
}

TEST_F(CalibrationText, ABatchOnAGpuHas4096Tokens) {
  const auto file = Write("a.txt", std::string(100 * 100, 'x'));
  const CalibrationSet cpu = LoadCalibration({file, 64, 128}, tokenizer_, 7, CalibrationBatchTokens(Device::kCpu)),
                       gpu = LoadCalibration({file, 64, 128}, tokenizer_, 7, CalibrationBatchTokens(Device::kCuda));
  ASSERT_EQ(cpu.fit.size(), 4u);  // 56 samples are fitted
  ASSERT_EQ(gpu.fit.size(), 2u);
  EXPECT_EQ(cpu.fit[0].size(), 2048);
  EXPECT_EQ(gpu.fit[0].size(), 4096);
  EXPECT_EQ(gpu.fit[1].size(), 56 * 128 - 4096);
  EXPECT_EQ(Starts(gpu.fit, 128, 4096), Starts(cpu.fit, 128, 2048));
  EXPECT_EQ(Starts(gpu.heldout, 128, 4096), Starts(cpu.heldout, 128, 2048));
}

TEST_F(CalibrationText, OneSampleIsFitted) {
  const CalibrationSet set = Load({Write("a.txt", std::string(12, 'x')), 8, 10}, tokenizer_, 0);
  EXPECT_EQ(set.fit_tokens, 10);
  EXPECT_TRUE(set.heldout.empty());
}

// A token is a byte here, so the samples spell the text they are of.
TEST_F(CalibrationText, PacksDocumentsInASeededOrder) {
  const auto file = Write("a.jsonl", "{\"text\": \"one\"}\r\n\n{\"id\": 3, \"text\": \"two\\u00e9\"}");
  std::set<std::string> orders;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const CalibrationSet set = Load({file, 1, 12}, bytes_, seed);
    EXPECT_EQ(set.documents, 2);
    EXPECT_EQ(set.documents_used, 2);
    EXPECT_EQ(set.text_tokens, 5 + 7);
    orders.insert(Spelled(set.fit));
  }
  EXPECT_EQ(orders, (std::set<std::string>{"one\n\ntwo\xc3\xa9\n\n", "two\xc3\xa9\n\none\n\n"}));
}

TEST_F(CalibrationText, ReadsNoMoreDocumentsThanTheSamplesTake) {
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += fmt::format("{{\"text\": \"{:08}\"}}\n", i);
  const auto file = Write("a.jsonl", lines);
  const CalibrationSet set = Load({file, 4, 25}, bytes_, 3);
  EXPECT_EQ(set.documents, 100);
  EXPECT_EQ(set.documents_used, 10);
  EXPECT_EQ(set.text_tokens, 100);
  EXPECT_EQ(set.fit_tokens, 75);
  EXPECT_EQ(set.heldout_tokens, 25);
  EXPECT_EQ(set.Accounting(), "10 of 100 documents read, 100 tokens: 75 fitted, 25 held out, 0 left over");
  const std::string text = Spelled(set.fit) + Spelled(set.heldout);
  std::set<std::string> chosen;
  for (int i = 0; i < 10; ++i) chosen.insert(text.substr(10 * i, 8));
  EXPECT_EQ(chosen.size(), 10u);  // each once
  EXPECT_EQ(Spelled(Load({file, 4, 25}, bytes_, 3).fit), Spelled(set.fit));
  EXPECT_NE(Spelled(Load({file, 4, 25}, bytes_, 4).fit), Spelled(set.fit));
}

TEST_F(CalibrationText, PutsAlpacaRowsIntoTheirTemplate) {
  const std::string rows = R"([{"instruction": "Add.", "input": "1 2", "output": "3"}])";
  const std::string expected =
      "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
      "response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n1 2\n\n"
      "### Response:\n3";
  const auto spelled = [&](const std::filesystem::path& file, int64_t tokens) {
    return Spelled(Load({file, 1, tokens}, bytes_, 0).fit);
  };
  const int64_t size = static_cast<int64_t>(expected.size());
  EXPECT_EQ(spelled(Write("a.json", rows), size), expected);
  EXPECT_EQ(spelled(Write("b.json", rows.substr(1, rows.size() - 2)), size), expected);  // a row a line
  EXPECT_EQ(spelled(Write("c.json", R"([{"instruction": "Sing.", "input": "", "output": "La."}])"), 148),
            "Below is an instruction that describes a task. Write a response that appropriately completes the request."
            "\n\n### Instruction:\nSing.\n\n### Response:\nLa.");
  EXPECT_EQ(spelled(Write("d.json", R"([{"text": "plain"}])"), 5), "plain");
}

TEST_F(CalibrationText, FindsTextsByName) {
  const auto here = Write("tale.txt", "once upon a time");
  Write("wiki.valid.raw", "a wiki");
  Write("c4.jsonl", "{\"text\": \"a page of the web\"}");
  const std::string places = "/nowhere:" + directory_.string();
  ASSERT_EQ(::setenv("SHIFTRT_DATA", places.c_str(), 1), 0);
  EXPECT_EQ(ResolveText("tale"), here);
  EXPECT_EQ(ResolveText("wikitext2"), directory_ / "wiki.valid.raw");
  EXPECT_EQ(ResolveText("c4"), directory_ / "c4.jsonl");
  EXPECT_EQ(ResolveText(here.string()), here);
  EXPECT_EQ(Load(ParseCalibration("tale:2x3"), bytes_, 0).source, "tale.txt, 2 samples x 3 tokens");
  EXPECT_NE(LoadError("alpaca").find("alpaca_data_cleaned.json"), std::string::npos);
  ASSERT_EQ(::unsetenv("SHIFTRT_DATA"), 0);
  EXPECT_NE(LoadError("tale").find("SHIFTRT_DATA (not set)"), std::string::npos);
}

TEST_F(CalibrationText, ReadsCompressedJsonLines) {
  const auto file = Write("a.jsonl.gz", "");
  const gzFile out = gzopen(file.c_str(), "wb");
  ASSERT_GT(gzputs(out, "{\"text\": \"one\"}\n{\"text\": \"two\"}\n"), 0);
  gzclose(out);
  const CalibrationSet set = Load({file.string(), 2, 5}, bytes_, 0);
  const std::string spelled = Spelled(set.fit) + Spelled(set.heldout);
  EXPECT_TRUE(spelled == "one\n\ntwo\n\n" || spelled == "two\n\none\n\n") << spelled;
  std::filesystem::resize_file(file, 20);
  EXPECT_NE(LoadError(file).find("a.jsonl.gz: the gzip data is truncated"), std::string::npos);
}

// A byte order mark is no part of the first line.
TEST_F(CalibrationText, ReadsJsonAfterAByteOrderMark) {
  for (const char* name : {"a.jsonl", "a.json"}) {
    const CalibrationSet set =
        Load({Write(name, "\xEF\xBB\xBF{\"text\": \"one\"}\n{\"text\": \"two\"}\n").string(), 2, 5}, bytes_, 0);
    const std::string spelled = Spelled(set.fit) + Spelled(set.heldout);
    EXPECT_TRUE(spelled == "one\n\ntwo\n\n" || spelled == "two\n\none\n\n") << spelled;
  }
}

// The rows of WikiText on the hub are the lines of one text.
TEST_F(CalibrationText, WikiTextOfTheHubIsOneDocument) {
  const std::filesystem::path rows = TestDirectory() / "goldens/parquet/groups.parquet";
  const Documents many = Documents::Read(rows);
  ASSERT_GT(many.size(), 1);
  const std::filesystem::path hub = directory_ / "wikitext-2-raw-v1/test-00000-of-00001.parquet";
  std::filesystem::create_directories(hub.parent_path());
  std::filesystem::copy_file(rows, hub);
  const Documents one = Documents::Read(hub);
  ASSERT_EQ(one.size(), 1);
  EXPECT_EQ(one.Text(0), many.Joined());
  EXPECT_EQ(one.Text(0), many.Text(0) + "\n\n" + one.Text(0).substr(many.Text(0).size() + 2));
  EXPECT_EQ(RunningText(hub), RunningText(rows));
}

TEST_F(CalibrationText, ARunningTextHasTheDocumentsAndNotTheirSyntax) {
  EXPECT_EQ(RunningText(Write("a.txt", "one\n\ntwo\n")), "one\n\ntwo\n");
  EXPECT_EQ(RunningText(Write("a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\\n\"}\n")), "one\n\ntwo\n");
  EXPECT_EQ(RunningText(Write("a.json", "[{\"text\": \"one\"}, {\"text\": \"two\\n\"}]")), "one\n\ntwo\n");
  EXPECT_EQ(RunningText(Write("a.raw", " = One = \n \n two \n")), " = One = \n\n\n\n\n two \n");
}

TEST_F(CalibrationText, NamesFileAndLineOfBadJson) {
  EXPECT_NE(LoadError(Write("a.jsonl", "{\"text\": \"one\"}\n\n{oops\n")).find("a.jsonl:3: "), std::string::npos);
  EXPECT_NE(LoadError(Write("b.jsonl", "{\"text\": \"one\"}\n{\"txt\": \"two\"}\n")).find("b.jsonl:2: "),
            std::string::npos);
  EXPECT_NE(LoadError(Write("c.jsonl", "{\"text\": 3}\n")).find("c.jsonl:1: "), std::string::npos);
  EXPECT_NE(LoadError(Write("d.jsonl", "[\"text\"]\n")).find("d.jsonl:1: "), std::string::npos);
  EXPECT_NE(LoadError(Write("e.json", "[]")).find("e.json: expected an array"), std::string::npos);
  EXPECT_NE(LoadError(Write("f.json", "[{\"text\": \"one\"}, 2]")).find("f.json: row 1"), std::string::npos);
  EXPECT_NE(LoadError(Write("g.json", R"([{"instruction": 1, "output": "x"}])")).find("\"instruction\""),
            std::string::npos);
  EXPECT_NE(LoadError(Write("h.json", "[[[")).find("h.json"), std::string::npos);
}

// Several texts have equally many samples, in turns, and the held-out samples are of all of them.
TEST_F(CalibrationText, SeveralTextsTakeTurns) {
  const std::vector<std::filesystem::path> files = {
      Write("a.txt", std::string(1000, 'a')), Write("b.txt", std::string(1000, 'b')),
      Write("c.txt", std::string(1000, 'c')), Write("d.txt", std::string(1000, 'd'))};
  // The number of samples of each letter.
  const auto counts = [](const std::vector<Batch>& batches) {
    std::map<int32_t, int64_t> counts;
    for (const Batch& batch : batches)
      for (int64_t s = 0; s < batch.sequences(); ++s) ++counts[batch.tokens[batch.offsets[s]]];
    return counts;
  };
  for (const int64_t texts : {2, 3, 4}) {
    std::string list = files[0].string();
    for (int64_t t = 1; t < texts; ++t) list += "," + files[t].string();
    const CalibrationSet set = Load({list, 96, 10}, bytes_, 0);
    EXPECT_EQ(set.documents_used, texts);
    const auto fit = counts(set.fit), heldout = counts(set.heldout);
    ASSERT_EQ(std::ssize(fit), texts) << list;
    ASSERT_EQ(std::ssize(heldout), texts) << list;
    for (const auto& [letter, count] : fit) EXPECT_EQ(count, 84 / texts) << letter << " of " << list;
    for (const auto& [letter, count] : heldout) EXPECT_EQ(count, 12 / texts) << letter << " of " << list;
    EXPECT_NE(set.hash, Load({files[0].string(), 96, 10}, bytes_, 0).hash);
  }
  const std::string both = files[0].string() + "," + Write("short.txt", std::string(25, 'e')).string();
  const CalibrationSet some = Load({both, 16, 10}, bytes_, 0);
  EXPECT_EQ(some.source, "a.txt and short.txt, 10 samples x 10 tokens (all there is; 16 asked for)");
  EXPECT_EQ(counts(some.fit)['e'] + counts(some.heldout)['e'], 2);
  EXPECT_THROW(Load({both, 1, 10}, bytes_, 0), UsageError);
}

TEST_F(CalibrationText, RefusesEmptyAndShortText) {
  EXPECT_NE(LoadError(Write("a.txt", "")).find("a.txt: the text is empty"), std::string::npos);
  EXPECT_NE(LoadError(Write("b.txt", " \n\n")).find("empty"), std::string::npos);
  EXPECT_NE(LoadError(Write("c.jsonl", "\n")).find("empty"), std::string::npos);
  EXPECT_NE(LoadError(Write("d.txt", "abc")).find("3 tokens, fewer than one sample of 4"), std::string::npos);
  EXPECT_NE(LoadError(directory_ / "missing.txt").find("missing.txt"), std::string::npos);
}

TEST(CalibrationSpec, Parses) {
  EXPECT_EQ(ParseCalibration("a.txt").source, "a.txt");
  EXPECT_EQ(ParseCalibration("a.txt").samples, 256);
  EXPECT_EQ(ParseCalibration("a.txt").tokens, 512);
  EXPECT_EQ(ParseCalibration("d/a.jsonl:128").samples, 128);
  EXPECT_EQ(ParseCalibration("a.txt:128x64").tokens, 64);
  EXPECT_EQ(ParseCalibration("odd:name.txt").source, "odd:name.txt");
  EXPECT_EQ(ParseCalibration("c4,d/b.txt:128x64").source, "c4,d/b.txt");
  EXPECT_EQ(ParseCalibration("c4,d/b.txt:128x64").samples, 128);
  for (const char* text : {"", ":3", "a.txt:", "a.txt:0", "a.txt:x", "a.txt:3x", "a.txt:3x0", "a.txt:-3", "a.txt:many",
                           "a.txt:3x4x5", "a.txt:99999999999999999999"})
    EXPECT_THROW(ParseCalibration(text), UsageError) << text;
}

// A text that is longer than a document may be gives its first lines, compressed or not.
TEST_F(CalibrationText, ALongPlainTextIsCutAtALine) {
  std::string text;
  while (text.size() <= kMaxDocumentBytes) text += std::string(1000, 'a') + "\n";
  const std::string whole = text + "rest";
  const auto expect_cut = [&](const std::filesystem::path& file) {
    const Documents documents = Documents::Read(file);
    EXPECT_TRUE(documents.cut());
    const std::string found = documents.Text(0);
    EXPECT_LE(found.size(), kMaxDocumentBytes);
    EXPECT_GT(found.size(), kMaxDocumentBytes - 1002);
    EXPECT_TRUE(found.ends_with("a\n"));
  };
  expect_cut(Write("long.txt", whole));
  const gzFile file = ::gzopen((directory_ / "long.txt.gz").c_str(), "wb1");
  ::gzwrite(file, whole.data(), static_cast<unsigned>(whole.size()));
  ::gzclose(file);
  expect_cut(directory_ / "long.txt.gz");
  EXPECT_FALSE(Documents::Read(Write("short.txt", "a few words\n")).cut());
}

// The line is refused long before it is in memory: these 256 MiB took 256 MiB and more.
TEST_F(CalibrationText, ALineWithoutAnEndTakesLittleMemory) {
  Write("a", "");
  const std::string path = directory_ / "line.jsonl.gz";
  const gzFile file = ::gzopen(path.c_str(), "wb1");
  ::gzputs(file, R"({"text": ")");
  const std::string piece(1 << 20, 'x');
  for (int i = 0; i < 256; ++i) ::gzwrite(file, piece.data(), static_cast<unsigned>(piece.size()));
  ::gzclose(file);
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      Documents::Read(path);
    } catch (const Error& error) {
      const bool right = std::string_view(error.what()).find("a line of more than 64 MiB") != std::string_view::npos;
      ::_exit(right ? 0 : 2);
    }
    ::_exit(1);
  }
  int status = 0;
  rusage used{};
  ::wait4(child, &status, 0, &used);
  EXPECT_EQ(status, 0);
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(used.ru_maxrss, 220 << 10) << "KiB";
#endif
}

}  // namespace
}  // namespace shiftrt

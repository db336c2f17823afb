#include "shift/calibration.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <fstream>
#include <set>

#include "runtime/check.h"

namespace shiftrt {
namespace {

// Numbers its tokens 0, 1, 2, ...: a token a byte, so that a sample tells where it was cut.
class CountingTokenizer : public Tokenizer {
 public:
  std::vector<int32_t> Encode(std::string_view text) const override {
    text_ = text;
    std::vector<int32_t> ids(text.size());
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
    return ids;
  }
  std::string Decode(std::span<const int32_t>, bool) const override { return {}; }
  std::string Piece(int32_t) const override { return {}; }
  int32_t vocab_size() const override { return INT32_MAX; }
  const std::string& text() const { return text_; }

 private:
  mutable std::string text_;
};

class Calibration : public testing::Test {
 protected:
  ~Calibration() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path Write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(directory_);
    std::ofstream(directory_ / name) << text;
    return directory_ / name;
  }
  std::string LoadError(const std::filesystem::path& file, int64_t tokens = 4) {
    try {
      LoadCalibration({file, 8, tokens}, tokenizer_, 0);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  CountingTokenizer tokenizer_;
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

TEST_F(Calibration, SamplesAreSeededDisjointAndInTextOrder) {
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

  EXPECT_EQ(Starts(LoadCalibration({file, 20, 100}, tokenizer_, 7).fit, 100, 2048), fit);
  EXPECT_NE(Starts(LoadCalibration({file, 20, 100}, tokenizer_, 8).fit, 100, 2048), fit);
  EXPECT_EQ(set.source, "a.txt, 20 samples x 100 tokens");
  EXPECT_EQ(set.hash.size(), 16u);
}

TEST_F(Calibration, TakesWhatThereIsAndSaysSo) {
  const CalibrationSet set = LoadCalibration({Write("a.txt", std::string(35, 'x')), 256, 10}, tokenizer_, 0);
  EXPECT_EQ(Starts(set.fit, 10, 2048), (std::vector<int32_t>{0, 10}));
  EXPECT_EQ(Starts(set.heldout, 10, 2048), (std::vector<int32_t>{20}));
  EXPECT_EQ(set.source, "a.txt, 3 samples x 10 tokens (all there is; 256 asked for)");
}

TEST_F(Calibration, OneSampleIsFitted) {
  const CalibrationSet set = LoadCalibration({Write("a.txt", std::string(12, 'x')), 8, 10}, tokenizer_, 0);
  EXPECT_EQ(set.fit_tokens, 10);
  EXPECT_TRUE(set.heldout.empty());
}

TEST_F(Calibration, JoinsTheDocumentsOfJsonLines) {
  LoadCalibration({Write("a.jsonl", "{\"text\": \"one\"}\r\n\n{\"id\": 3, \"text\": \"two\\u00e9\"}"), 8, 4},
                  tokenizer_, 0);
  EXPECT_EQ(tokenizer_.text(), "one\n\ntwo\xc3\xa9");
}

TEST_F(Calibration, ReadsCompressedJsonLines) {
  const auto file = Write("a.jsonl.gz", "");
  const gzFile out = gzopen(file.c_str(), "wb");
  ASSERT_GT(gzputs(out, "{\"text\": \"one\"}\n{\"text\": \"two\"}\n"), 0);
  gzclose(out);
  LoadCalibration({file, 8, 4}, tokenizer_, 0);
  EXPECT_EQ(tokenizer_.text(), "one\n\ntwo");
  std::filesystem::resize_file(file, 20);
  EXPECT_NE(LoadError(file).find("a.jsonl.gz: the gzip data breaks off"), std::string::npos);
}

TEST_F(Calibration, NamesFileAndLineOfBadJson) {
  EXPECT_NE(LoadError(Write("a.jsonl", "{\"text\": \"one\"}\n\n{oops\n")).find("a.jsonl:3: "), std::string::npos);
  EXPECT_NE(LoadError(Write("b.jsonl", "{\"text\": \"one\"}\n{\"txt\": \"two\"}\n")).find("b.jsonl:2: "),
            std::string::npos);
  EXPECT_NE(LoadError(Write("c.jsonl", "{\"text\": 3}\n")).find("c.jsonl:1: "), std::string::npos);
  EXPECT_NE(LoadError(Write("d.jsonl", "[\"text\"]\n")).find("d.jsonl:1: "), std::string::npos);
}

TEST_F(Calibration, RefusesEmptyAndShortText) {
  EXPECT_NE(LoadError(Write("a.txt", "")).find("a.txt: the calibration text is empty"), std::string::npos);
  EXPECT_NE(LoadError(Write("b.txt", " \n\n")).find("empty"), std::string::npos);
  EXPECT_NE(LoadError(Write("c.jsonl", "\n")).find("empty"), std::string::npos);
  EXPECT_NE(LoadError(Write("d.txt", "abc")).find("3 tokens, fewer than one sample of 4"), std::string::npos);
  EXPECT_NE(LoadError(directory_ / "missing.txt").find("missing.txt"), std::string::npos);
}

TEST(CalibrationSpec, Parses) {
  EXPECT_EQ(ParseCalibration("a.txt").file, "a.txt");
  EXPECT_EQ(ParseCalibration("a.txt").samples, 256);
  EXPECT_EQ(ParseCalibration("a.txt").tokens, 512);
  EXPECT_EQ(ParseCalibration("d/a.jsonl:128").samples, 128);
  EXPECT_EQ(ParseCalibration("a.txt:128x64").tokens, 64);
  EXPECT_EQ(ParseCalibration("odd:name.txt").file, "odd:name.txt");
  for (const char* text : {"", ":3", "a.txt:", "a.txt:0", "a.txt:x", "a.txt:3x", "a.txt:3x0", "a.txt:-3", "a.txt:many",
                           "a.txt:3x4x5", "a.txt:99999999999999999999"})
    EXPECT_THROW(ParseCalibration(text), UsageError) << text;
}

}  // namespace
}  // namespace shiftrt

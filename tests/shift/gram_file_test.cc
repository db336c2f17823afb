// SPDX-License-Identifier: Apache-2.0
#include "shift/sums/gram_file.h"

#include "runtime/check.h"
#include "runtime/files.h"
#include "tests/shift/small_model.h"
#include "tests/shift/tokens.h"

namespace shiftrt {
namespace {

namespace fs = std::filesystem;

class GramFile : public test::SmallModel {
 protected:
  SavedSums Collected(const CalibrationSet& calibration, const std::string& file,
                      const std::vector<BlockPart>& layers = {1, 4}) {
    NoProgress progress;
    const ShiftJob job = {context_, model_, calibration, progress};
    return CollectIntoFile(job, NewSavedSums(job, layers, "plain"), directory_ / file);
  }

  // The message of the Error that `call` throws.
  template <typename Call>
  static std::string Refusal(Call&& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

// Bit for bit.
void ExpectSame(const RidgeSums& a, const RidgeSums& b) {
  EXPECT_EQ(a.tokens(), b.tokens());
  EXPECT_EQ(a.DeltaSquares(), b.DeltaSquares());
  EXPECT_EQ(test::RelativeError(a.Gram().span(), b.Gram().span()), 0.0);
  EXPECT_EQ(test::RelativeError(a.Cross().span(), b.Cross().span()), 0.0);
}

void ExpectSame(const CalibrationSums& a, const CalibrationSums& b) {
  ASSERT_EQ(a.Parts(), b.Parts());
  EXPECT_EQ(a.fit_batches, b.fit_batches);
  EXPECT_EQ(a.heldout_batches, b.heldout_batches);
  for (size_t i = 0; i < a.sites.size(); ++i) {
    ExpectSame(a.sites[i].fit, b.sites[i].fit);
    ExpectSame(a.sites[i].heldout, b.sites[i].heldout);
  }
}

// Asks to stop after so many steps.
class Impatient : public Progress {
 public:
  explicit Impatient(int64_t steps) : left_(steps) {}
  void Begin(std::string_view, int64_t) override {}
  void Advance(int64_t) override {
    if (--left_ == 0) throw Interrupted();
  }
  void End() override {}

 private:
  int64_t left_;
};

TEST_F(GramFile, HoldsWhatWasCollected) {
  SavedSums set = Collected(calibration_, "sums");
  set.scores["bi"] = {0.5, 0.25, 1, 2, 3, 4};
  WriteSums(directory_ / "sums", set);
  const SavedSums read = ReadSums(directory_ / "sums");
  ExpectSame(read.sums, set.sums);
  EXPECT_TRUE(read.complete());
  EXPECT_EQ(read.origin.model, model_.weights->Fingerprint());
  EXPECT_EQ(read.origin.settings, "plain");
  EXPECT_EQ(read.origin.fit_samples.size(), 28u);
  EXPECT_EQ(read.origin.heldout_samples.size(), 4u);
  EXPECT_EQ(read.scores.at("bi"), set.scores.at("bi"));
  EXPECT_EQ(read.sums.sites[0].fit.tokens(), 28 * 32);
  EXPECT_EQ(read.sums.sites[0].heldout.tokens(), 4 * 32);
}

TEST_F(GramFile, AnInterruptedRunEndsWithTheSameBits) {
  const SavedSums whole = Collected(calibration_, "whole");
  for (const int64_t steps : {1, 9, 28, 30}) {
    SCOPED_TRACE(steps);
    const fs::path file = directory_ / fmt::format("part{}", steps);
    Impatient progress(steps);
    const ShiftJob job = {context_, model_, calibration_, progress};
    EXPECT_THROW(CollectIntoFile(job, NewSavedSums(job, {1, 4}, "plain"), file), Interrupted);
    const SavedSums part = ReadSums(file);
    EXPECT_FALSE(part.complete());
    EXPECT_EQ(part.sums.fit_batches + part.sums.heldout_batches, steps);
    EXPECT_NE(Refusal([&] { LoadSums({file}); }).find("interrupted"), std::string::npos);
    ExpectSame(Collected(calibration_, file.filename().string()).sums, whole.sums);
    ExpectSame(ReadSums(file).sums, whole.sums);
  }
}

// A process killed outright leaves a checkpoint that can be read. The first batch makes one; later ones come as time
// allows.
TEST_F(GramFile, IsWrittenWhileItGrows) {
  const fs::path file = directory_ / "sums";
  class Watcher : public NoProgress {
   public:
    explicit Watcher(const fs::path& file) : file_(file) {}
    void Advance(int64_t) override {
      const SavedSums set = ReadSums(file_);
      const int64_t held = set.sums.fit_batches + set.sums.heldout_batches;
      EXPECT_LE(held, ++batches_);
      EXPECT_GE(held, last_);
      last_ = held;
    }

   private:
    fs::path file_;
    int64_t batches_ = 0, last_ = 1;
  } watcher(file);
  calibration_.fit.resize(4);
  const ShiftJob job = {context_, model_, calibration_, watcher};
  CollectIntoFile(job, NewSavedSums(job, {2}, "plain"), file, 0);
}

TEST_F(GramFile, ACompleteFileIsUsedAsItIs) {
  const SavedSums set = Collected(calibration_, "sums");
  const auto written = fs::last_write_time(directory_ / "sums");
  Impatient none(1);  // would throw at the first batch
  const ShiftJob job = {context_, model_, calibration_, none};
  const SavedSums again = CollectIntoFile(job, NewSavedSums(job, {1, 4}, "plain"), directory_ / "sums");
  ExpectSame(again.sums, set.sums);
  EXPECT_EQ(fs::last_write_time(directory_ / "sums"), written);
}

TEST_F(GramFile, DisjointTextsAddUpToOneRun) {
  const CalibrationSet other = MakeCalibration(5, 24);
  CalibrationSet both = calibration_;
  both.fit.insert(both.fit.end(), other.fit.begin(), other.fit.end());
  both.heldout.insert(both.heldout.end(), other.heldout.begin(), other.heldout.end());
  Collected(calibration_, "a");
  Collected(other, "b");
  const SavedSums sum = LoadSums({directory_ / "a", directory_ / "b"}), one = Collected(both, "both");
  EXPECT_TRUE(sum.complete());
  EXPECT_EQ(sum.origin.fit_samples, one.origin.fit_samples);
  for (size_t i = 0; i < 2; ++i) {
    for (const auto part : {&SiteSums::fit, &SiteSums::heldout}) {
      const RidgeSums &x = sum.sums.sites[i].*part, &y = one.sums.sites[i].*part;
      EXPECT_EQ(x.tokens(), y.tokens());
      EXPECT_LT(test::RelativeError(x.Gram().span(), y.Gram().span()), 1e-12);
      EXPECT_LT(test::RelativeError(x.Cross().span(), y.Cross().span()), 1e-12);
      EXPECT_NEAR(x.DeltaSquares(), y.DeltaSquares(), 1e-12 * y.DeltaSquares());
    }
  }
}

TEST_F(GramFile, RefusesToSumWhatDoesNotBelongTogether) {
  Collected(calibration_, "a");
  const fs::path a = directory_ / "a", b = directory_ / "b";
  const auto refusal = [&] { return Refusal([&] { LoadSums({a, b}); }); };
  fs::copy_file(a, b);
  EXPECT_NE(refusal().find("32 samples are in both"), std::string::npos) << refusal();

  const CalibrationSet other = MakeCalibration(5, 24);
  const auto write = [&](const Model& model, const std::string& settings, const std::vector<BlockPart>& layers) {
    fs::remove(b);
    NoProgress progress;
    const ShiftJob job = {context_, model, other, progress};
    CollectIntoFile(job, NewSavedSums(job, layers, settings), b);
  };
  write(MakeModel(8), "plain", {1, 4});
  EXPECT_NE(refusal().find("two models"), std::string::npos) << refusal();
  write(model_, "weighted", {1, 4});
  EXPECT_NE(refusal().find("settings differ: plain and weighted"), std::string::npos) << refusal();
  write(model_, "plain", {1, 3});
  EXPECT_NE(refusal().find("one has layers 1, 4, the other 1, 3"), std::string::npos) << refusal();
  write(model_, "plain", {1, 4});
  EXPECT_EQ(refusal(), "");
}

TEST_F(GramFile, IsNotOverwrittenByAnotherRun) {
  Collected(calibration_, "sums");
  const CalibrationSet other = MakeCalibration(5, 24);
  EXPECT_NE(Refusal([&] { Collected(other, "sums"); }).find("another text"), std::string::npos);
  EXPECT_NE(Refusal([&] { Collected(calibration_, "sums", {1, 3}); }).find("holds layers 1, 4"), std::string::npos);
  model_ = MakeModel(8);
  EXPECT_NE(Refusal([&] { Collected(calibration_, "sums"); }).find("two models"), std::string::npos);
}

TEST_F(GramFile, GivesTheLayersThatWereSaved) {
  const SavedSums set = Collected(calibration_, "sums", {1, 3, 4});
  const std::vector<const SiteSums*> sites = set.sums.Sites({1, 4});
  ASSERT_EQ(sites.size(), 2u);
  EXPECT_EQ(sites[0], &set.sums.sites[0]);
  EXPECT_EQ(sites[1], &set.sums.sites[2]);
  EXPECT_NE(Refusal([&] {
              set.sums.Sites({1, 2});
            }).find("no sums of layer 2; there are of 1, 3, 4"),
            std::string::npos);
  CheckModel(set, model_);
  EXPECT_THROW(CheckModel(set, MakeModel(8)), Error);
}

TEST_F(GramFile, RefusesDamagedFiles) {
  Collected(calibration_, "sums", {2});
  const std::string good = ReadFile(directory_ / "sums");
  const fs::path bad = directory_ / "bad";
  const auto refusal = [&](const std::string& bytes) {
    std::ofstream(bad, std::ios::binary) << bytes;
    return Refusal([&] { ReadSums(bad); });
  };
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string bytes = good;
    EXPECT_EQ(from.size(), to.size());
    bytes.replace(bytes.find(from), from.size(), to);
    return bytes;
  };
  EXPECT_EQ(refusal(good), "");
  EXPECT_NE(refusal(good.substr(0, good.size() - 8)).find("bad"), std::string::npos);
  EXPECT_NE(refusal(""), "");
  EXPECT_NE(refusal(replaced("shiftrt-gram", "shiftrt-gran")).find("not a file of calibration sums"),
            std::string::npos);
  EXPECT_NE(refusal(replaced(R"(\"version\":2)", R"(\"version\":9)")).find("version 9"), std::string::npos);
  EXPECT_NE(refusal(replaced(R"(\"layers\":[2])", R"(\"layers\":[3])")).find("layer.3"), std::string::npos);
  EXPECT_NE(refusal(replaced(R"(\"settings\")", R"(\"sittings\")")).find("settings"), std::string::npos);
  EXPECT_NE(refusal(replaced(R"(\"fit_batches\":[28,28])", R"(\"fit_batches\":[29,28])")).find("fit_batches"),
            std::string::npos);
  // One bit of a number, and one digit of a count that is plausible.
  std::string flipped = good;
  flipped[flipped.size() - 700] = static_cast<char>(flipped[flipped.size() - 700] ^ 1);
  EXPECT_NE(refusal(flipped).find("checksum"), std::string::npos);
  EXPECT_NE(refusal(replaced(R"(\"fit_batches\":[28,28])", R"(\"fit_batches\":[28,29])")).find("checksum"),
            std::string::npos);
  std::string nan = good;
  const double bits = std::numeric_limits<double>::quiet_NaN();
  nan.replace(nan.size() - 8, 8, reinterpret_cast<const char*>(&bits), 8);
  EXPECT_NE(refusal(nan).find("nan"), std::string::npos);
}

}  // namespace
}  // namespace shiftrt

// SPDX-License-Identifier: Apache-2.0
#include "shift/sweep.h"

#include <map>
#include <tuple>

#include "runtime/check.h"
#include "shift/pipeline.h"
#include "tests/shift/small_model.h"
#include "tests/shift/tokens.h"

namespace shiftrt {
namespace {

// Tokens of each phase.
class Meter : public Progress {
 public:
  void Begin(std::string_view phase, int64_t) override { phase_ = phase; }
  void Advance(int64_t count) override { counts_[phase_] += count; }
  void End() override {}
  int64_t operator[](const std::string& phase) { return counts_[phase]; }

 private:
  std::string phase_;
  std::map<std::string, int64_t> counts_;
};

class SweepTest : public test::SmallModel {
 protected:
  static constexpr int64_t kSamples = 32;

  SweepAxes Axes(const std::vector<std::string>& prunes) {
    SweepAxes axes;
    for (const std::string& prune : prunes) axes.prunes.push_back(ParsePrune(prune));
    axes.ranks = {RankSpec::Fixed(4)};
    axes.samples = {kSamples};
    return axes;
  }
  std::vector<SweepRow> Run(const SweepAxes& axes) {
    std::vector<SweepRow> rows;
    SweepSource source;
    source.open = [&](uint64_t seed, int64_t samples) {
      EXPECT_EQ(samples, kSamples);
      ++opened_;
      return MakeCalibration(100 + seed, kSamples);
    };
    source.measure = [&](const DepthPlan& plan) {
      ++measured_;
      return Quality{.perplexity = Measure(plan)};
    };
    source.known = [&](const Recipe& recipe, int64_t samples) -> const SweepRow* {
      const auto found = known_.find({SettingText(recipe), recipe.seed, samples});
      return found == known_.end() ? nullptr : &found->second;
    };
    source.row = [&](const SweepRow& row) { rows.push_back(row); };
    Sweep({context_, model_, meter_}, axes, source);
    return rows;
  }
  // Any number that tells plans apart.
  double Measure(const DepthPlan& plan) {
    Decoder decoder(context_, model_.weights, plan);
    const MatrixView<const float> h = decoder.Forward(calibration_.heldout[0]).host();
    double sum = 0;
    for (int64_t t = 0; t < h.rows; ++t)
      for (int64_t j = 0; j < h.cols; ++j) sum += std::sin(static_cast<double>(t + 7 * j)) * h(t, j);
    return sum;
  }

  Meter meter_;
  int opened_ = 0, measured_ = 0;
  std::map<std::tuple<std::string, uint64_t, int64_t>, SweepRow> known_;
};

TEST_F(SweepTest, CellsThatAreKnownAreNotComputedAgain) {
  SweepAxes axes = Axes({"bi:1", "layers=2,4"});
  axes.factorizations = {Factorization::kSvd, Factorization::kReducedRank};
  axes.seeds = {0, 1};
  const std::vector<SweepRow> whole = Run(axes);
  ASSERT_EQ(whole.size(), 8u);
  for (size_t i = 0; i < 6; ++i)  // all of seed 0, and two cells of seed 1
    known_[{SettingText(whole[i].recipe), whole[i].recipe.seed, whole[i].samples}] = whole[i];
  opened_ = measured_ = 0;
  const std::vector<SweepRow> again = Run(axes);
  EXPECT_EQ(opened_, 1);
  EXPECT_EQ(measured_, 2) << "the corrected models of the last two cells";
  ASSERT_EQ(again.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(SettingText(again[i].recipe), SettingText(whole[i].recipe));
    EXPECT_EQ(again[i].recipe.seed, whole[i].recipe.seed);
    EXPECT_EQ(again[i].corrected.perplexity, whole[i].corrected.perplexity);
    EXPECT_EQ(again[i].original.perplexity, whole[i].original.perplexity);
  }
}

TEST_F(SweepTest, EachCellIsWhatARunOfItsSettingsGives) {
  SweepAxes axes = Axes({"bi:1", "bi:2", "reverse*:2", "layers=0,5"});
  axes.lambdas = {ParseLambda("gcv"), ParseLambda("1e-2rel")};
  axes.factorizations = {Factorization::kSvd, Factorization::kReducedRank};
  axes.ranks = {RankSpec::Fixed(2), RankSpec::Full(), ParseRank("energy:0.5")};
  axes.seeds = {0, 1};
  const std::vector<SweepRow> rows = Run(axes);
  ASSERT_EQ(rows.size(), 4u * 2 * 2 * 3 * 2);
  NoProgress progress;
  for (const SweepRow& row : rows) {
    SCOPED_TRACE(fmt::format("{} {} {} {} seed {}", Format(row.recipe.prune), Format(row.recipe.lambda),
                             Name(row.recipe.factorization), Format(row.recipe.rank), row.recipe.seed));
    const CalibrationSet calibration = MakeCalibration(100 + row.recipe.seed, kSamples);
    const ShiftResult run = Shift({context_, model_, calibration, progress}, row.recipe);
    EXPECT_EQ(row.removed, run.selection.removed);
    EXPECT_EQ(row.tokens, 28 * 32);
    EXPECT_EQ(row.samples, kSamples);
    const double scale = std::abs(Measure(DepthPlan::Original(kLayers)));
    EXPECT_EQ(row.original.perplexity, Measure(DepthPlan::Original(kLayers)));
    EXPECT_EQ(row.pruned.perplexity, Measure(run.pruned));
    EXPECT_NEAR(row.corrected.perplexity, Measure(run.corrected), 1e-4 * scale);
    double r2_fit = 0, r2_heldout = 0;
    int64_t parameters = 0;
    for (const FitReport& site : run.sites) {
      r2_fit += site.r2_fit / static_cast<double>(run.sites.size());
      r2_heldout += site.r2_heldout / static_cast<double>(run.sites.size());
    }
    for (const AdapterStage* adapter : run.corrected.Adapters()) parameters += adapter->lra->parameters();
    EXPECT_NEAR(row.r2_fit, r2_fit, 1e-6);
    EXPECT_NEAR(row.r2_heldout, r2_heldout, 1e-6);
    EXPECT_EQ(row.parameters, parameters);
  }
}

TEST_F(SweepTest, EveryCorrectionIsWhatARunOfItGives) {
  SweepAxes axes = Axes({"layers=1,2,4"});
  axes.corrections.clear();
  for (const Correction& correction : Corrections()) axes.corrections.emplace_back(correction.name);
  axes.modes = {Calibration::kSequential, Calibration::kIndependent, Calibration::kDrift};
  axes.weightings = {TokenWeights(), ParseTokenWeights("norm,first:0")};
  axes.ranks = {RankSpec::Fixed(2), RankSpec::Full()};
  const std::vector<SweepRow> rows = Run(axes);
  // Adapters in every mode with all weights, of which a mean update has no rank; refit, norm-refit and joint with all
  // weights, the last two by rank; once each what has neither; auto by rank.
  EXPECT_EQ(rows.size(), 3u * 3 * 2 * 2 + 3 * 2 + 2 + 2 * 2 * 2 + 7 + 2);
  EXPECT_EQ(Summarize(rows).size(), rows.size());
  const CalibrationSet calibration = MakeCalibration(100, kSamples);
  NoProgress progress;
  for (const SweepRow& row : rows) {
    SCOPED_TRACE(fmt::format("{} {} {} {}", row.recipe.correction, Name(row.recipe.mode), Format(row.recipe.weighting),
                             Format(row.recipe.rank)));
    const ShiftResult run = Shift({context_, model_, calibration, progress}, row.recipe);
    // Corrections that scale the stream have sites but no R².
    EXPECT_EQ(std::isnan(row.r2_heldout),
              std::ranges::all_of(run.sites, [](const FitReport& site) { return std::isnan(site.r2_heldout); }));
    if (row.recipe.correction == "auto") continue;  // may fit a part of the text, by its order, which the sweep mixes
    EXPECT_NEAR(row.corrected.perplexity, Measure(run.corrected), 1e-4 * std::abs(row.original.perplexity));
    EXPECT_EQ(row.tokens, run.sites.empty() ? 0 : run.sites[0].tokens);
  }
}

TEST_F(SweepTest, HealingIsAnAxis) {
  SweepAxes axes = Axes({"layers=2"});
  axes.corrections = {"lra", "none"};
  axes.heals = {Heal::kOff, Heal::kAll};
  const std::vector<SweepRow> rows = Run(axes);
  ASSERT_EQ(rows.size(), 4u);
  const CalibrationSet calibration = MakeCalibration(100, kSamples);
  NoProgress progress;
  for (const SweepRow& row : rows) {
    const ShiftResult run = Shift({context_, model_, calibration, progress}, row.recipe);
    EXPECT_EQ(run.healed.empty(), row.recipe.heal == Heal::kOff);
    EXPECT_NEAR(row.corrected.perplexity, Measure(run.corrected), 1e-4 * std::abs(row.original.perplexity));
  }
}

TEST_F(SweepTest, TakesOnePassASeed) {
  SweepAxes axes = Axes({"bi:1", "bi:3", "reverse:2"});
  axes.lambdas = {ParseLambda("gcv"), ParseLambda("1")};
  axes.samples = {32, 8, 16};
  axes.seeds = {0, 1};
  const std::vector<SweepRow> rows = Run(axes);
  EXPECT_EQ(rows.size(), 3u * 2 * 3 * 2);
  EXPECT_EQ(opened_, 2);
  EXPECT_EQ(meter_["calibrating"], 2 * 28 * 32);
  EXPECT_EQ(meter_["measuring on held-out text"], 2 * 4 * 32);
  EXPECT_EQ(meter_["selecting layers"], 2 * 28 * 32);
  // Every cell's correction once; the original once; a pruned model once for each set of layers.
  std::set<std::string> sets;
  for (const SweepRow& row : rows) sets.insert(Names(row.removed));
  EXPECT_EQ(measured_, static_cast<int>(rows.size() + 1 + sets.size()));
}

TEST_F(SweepTest, SmallerSizesAreNotTheBeginningOfTheText) {
  SweepAxes axes = Axes({"layers=2"});
  axes.samples = {8, 16, 32};
  const std::vector<SweepRow> rows = Run(axes);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].tokens, 7 * 32);
  EXPECT_EQ(rows[1].tokens, 14 * 32);
  EXPECT_EQ(rows[2].tokens, 28 * 32);
  CalibrationSet beginning = MakeCalibration(100, kSamples);
  beginning.fit.resize(7);
  Recipe options{.mode = Calibration::kIndependent};
  options.prune = axes.prunes[0];
  options.rank = axes.ranks[0];
  NoProgress progress;
  const ShiftResult run = Shift({context_, model_, beginning, progress}, options);
  EXPECT_GT(std::abs(run.sites[0].r2_fit - rows[0].r2_fit), 1e-6);
}

TEST_F(SweepTest, SizesThatFitTheSameNumberOfSamplesHaveTheirRows) {
  SweepAxes axes = Axes({"layers=2"});
  axes.samples = {15, 16, 32};  // one of 15 and two of 16 samples are held out
  const std::vector<SweepRow> rows = Run(axes);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].samples, 15);
  EXPECT_EQ(rows[1].samples, 16);
  EXPECT_EQ(rows[0].tokens, 14 * 32);
  EXPECT_EQ(rows[1].tokens, 14 * 32);
  EXPECT_EQ(rows[0].corrected.perplexity, rows[1].corrected.perplexity);
}

TEST_F(SweepTest, RefusesBeforeAnyWork) {
  SweepAxes axes = Axes({"bi:1"});
  axes.ranks = {RankSpec::Fixed(kWidth + 1)};
  EXPECT_THROW(Run(axes), UsageError);
  axes = Axes({"bi:1"});
  axes.samples = {0};
  EXPECT_THROW(Run(axes), UsageError);
  Recipe gated;
  gated.gate = true;
  axes = Axes({"bi:1"});
  axes.recipes = {gated};
  EXPECT_THROW(Run(axes), UsageError);
  axes = Axes({"bi:1"});
  axes.modes = {Calibration::kIndependent, Calibration::kDrift};
  axes.ranks = {ParseRank("budget:1k")};
  EXPECT_THROW(Run(axes), UsageError);
  EXPECT_EQ(opened_, 0);
}

TEST(Summarize, GivesMeansAndDeviationsOverSeeds) {
  std::vector<SweepRow> rows;
  for (const auto& [samples, seed, pruned, corrected] : std::vector<std::tuple<int64_t, uint64_t, double, double>>{
           {8, 0, 5, 1}, {16, 0, 5, 4}, {8, 1, 7, 2}, {8, 2, 9, 6}}) {
    SweepRow row;
    row.recipe.prune = ParsePrune("random:2");
    row.samples = samples;
    row.recipe.seed = seed;
    row.original.perplexity = 1;
    row.pruned.perplexity = pruned;
    row.pruned.accuracy = pruned / 10;
    row.corrected.perplexity = corrected;
    rows.push_back(row);
  }
  const std::vector<SweepSummary> summaries = Summarize(rows);
  ASSERT_EQ(summaries.size(), 2u);
  EXPECT_EQ(summaries[0].seeds, 3);
  EXPECT_DOUBLE_EQ(summaries[0].pruned.perplexity, 7);
  EXPECT_DOUBLE_EQ(summaries[0].pruned_deviation.perplexity, 2);
  EXPECT_DOUBLE_EQ(summaries[0].corrected.perplexity, 3);
  EXPECT_DOUBLE_EQ(summaries[0].corrected_deviation.perplexity, std::sqrt(7.0));
  EXPECT_DOUBLE_EQ(summaries[0].pruned.accuracy, 0.7);
  EXPECT_DOUBLE_EQ(summaries[0].pruned_deviation.accuracy, 0.2);
  EXPECT_TRUE(std::isnan(summaries[0].corrected.accuracy));
  EXPECT_EQ(summaries[1].seeds, 1);
  EXPECT_EQ(summaries[1].first.samples, 16);
  EXPECT_EQ(summaries[1].corrected_deviation.perplexity, 0);
}

}  // namespace
}  // namespace shiftrt

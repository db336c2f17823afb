// SPDX-License-Identifier: Apache-2.0
#include "shift/pipeline.h"

#include <algorithm>
#include <functional>

#include "runtime/check.h"
#include "shift/selection_pass.h"
#include "shift/sums/gram_file.h"
#include "tests/shift/small_model.h"
#include "tests/shift/tokens.h"

namespace shiftrt {
namespace {

class Pipeline : public test::SmallModel {
 protected:
  ShiftResult Run(const std::string& prune, int64_t rank, Merge merge = Merge::kOff,
                  const std::string& lambda = "gcv") {
    Recipe options{.mode = Calibration::kIndependent};
    options.prune = ParsePrune(prune);
    options.rank = rank == 0 ? RankSpec::Full() : RankSpec::Fixed(rank);
    options.merge = merge;
    options.lambda = ParseLambda(lambda);
    NoProgress progress;
    return Shift({context_, model_, calibration_, progress}, options);
  }

  // The final stream of the held-out batches under a plan.
  std::vector<double> Stream(const DepthPlan& plan) {
    Decoder decoder(context_, model_.weights, plan);
    std::vector<double> out;
    for (const Batch& batch : calibration_.heldout) {
      const MatrixView<const float> h = decoder.Forward(batch).host();
      for (int64_t i = 0; i < h.rows; ++i) out.insert(out.end(), h.row(i), h.row(i) + h.cols);
    }
    return out;
  }

  // From outputs less inputs, not from the block's own update.
  RidgeSums SumsOf(int64_t layer) {
    RidgeSums sums(kWidth);
    Matrix<float> input(32, kWidth), update(32, kWidth);
    std::vector<Tap> taps;
    taps.push_back({layer, TapPoint::kInput, [&](const Rows& seen, const Batch&) {
                      const MatrixView<const float> h = seen.host();
                      for (int64_t i = 0; i < h.rows; ++i) std::copy_n(h.row(i), h.cols, input.row(i));
                    }});
    taps.push_back({layer, TapPoint::kOutput, [&](const Rows& seen, const Batch&) {
                      const MatrixView<const float> h = seen.host();
                      for (int64_t i = 0; i < h.rows; ++i)
                        for (int64_t j = 0; j < h.cols; ++j) update(i, j) = h(i, j) - input(i, j);
                      sums.Add(context_, input.view(), update.view());
                    }});
    Decoder decoder(context_, model_.weights, DepthPlan::Original(kLayers), std::move(taps));
    for (const Batch& batch : calibration_.fit) decoder.Forward(batch);
    return sums;
  }
};

TEST_F(Pipeline, FitsEachSiteFromTheOriginalModel) {
  const ShiftResult result = Run("layers=1,4", 0, Merge::kOff, "1e-3");
  ASSERT_EQ(result.sites.size(), 2u);
  for (const FitReport& site : result.sites) {
    const RidgeSums sums = SumsOf(site.layers.front().layer);
    const RidgeSolution solution = SolveRidge(context_, sums, {ParseLambda("1e-3"), false});
    EXPECT_EQ(site.lambda, 1e-3);
    EXPECT_EQ(site.rank, kWidth);
    EXPECT_NEAR(site.r2_fit, RSquared(context_, sums, solution.a.host().view(), solution.b.view()), 1e-6);
    EXPECT_LE(site.r2_heldout, site.r2_fit);
  }
  EXPECT_EQ(result.pruned.stages.size(), 4u);
  EXPECT_EQ(result.corrected.stages.size(), 6u);
  EXPECT_FALSE(result.merged.has_value());
}

// Counts the passes over the calibration text.
struct Passes : NoProgress {
  void Begin(std::string_view phase, int64_t) override { calibrations += phase == "calibrating"; }
  int calibrations = 0;
};

TEST_F(Pipeline, SitesThatMemoryHasNoRoomForAreFittedInGroupsToTheSameBits) {
  Recipe options{.mode = Calibration::kIndependent};
  options.prune = ParsePrune("layers=0,1,2,4,5");
  options.rank = RankSpec::Full();
  options.merge = Merge::kFull;
  Passes one, several;
  const ShiftResult whole = Shift({context_, model_, calibration_, one}, options);
  EXPECT_EQ(one.calibrations, 1);
  EXPECT_EQ(whole.merged_runs.size(), 2u);
  Context small = context_;
  small.memory = 2 * SiteSums::Bytes(kWidth);
  const ShiftResult groups = Shift({small, model_, calibration_, several}, options);
  EXPECT_EQ(several.calibrations, 3);
  EXPECT_TRUE(groups.merged_runs.empty());
  ASSERT_EQ(groups.sites.size(), 5u);
  EXPECT_EQ(Stream(groups.corrected), Stream(whole.corrected));
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(groups.sites[i].name, whole.sites[i].name);
    EXPECT_EQ(groups.sites[i].r2_heldout, whole.sites[i].r2_heldout);
  }
}

TEST_F(Pipeline, MapsAfterAnMlpAreFittedInGroupsTooToTheSameBits) {
  Recipe options{.mode = Calibration::kIndependent};
  options.prune = ParsePrune("layers=1,3,5");
  options.rank = RankSpec::Fixed(4);
  options.correction = "replaceme";
  Passes one, several;
  const ShiftResult whole = Shift({context_, model_, calibration_, one}, options);
  Context small = context_;
  small.memory = 2 * SiteSums::Bytes(kWidth);
  const ShiftResult groups = Shift({small, model_, calibration_, several}, options);
  EXPECT_EQ(several.calibrations, one.calibrations + 1);
  EXPECT_EQ(Stream(groups.corrected), Stream(whole.corrected));
}

TEST_F(Pipeline, WhatCannotBeDoneInGroupsSaysHowMuchMemoryItTakes) {
  NoProgress progress;
  context_.memory = 2 * SiteSums::Bytes(kWidth);
  const auto refused = [&](const char* why, const std::function<void(Recipe&)>& change) {
    Recipe options{.mode = Calibration::kIndependent};
    options.prune = ParsePrune("layers=1,3,5");
    options.rank = RankSpec::Fixed(4);
    change(options);
    try {
      Shift({context_, model_, calibration_, progress}, options);
      ADD_FAILURE() << why;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  refused("sums of 3 sites", [](Recipe& o) { o.rank = ParseRank("budget:2k"); });
  refused("sums of 5 sites", [](Recipe& o) { o.gram.save = "unwritten.gram"; });
  refused("sums of 6 sites", [](Recipe& o) { o.correction = "auto"; });  // two ways to weight tokens
  EXPECT_FALSE(std::filesystem::exists("unwritten.gram"));
  context_.memory = SiteSums::Bytes(kWidth) - 1;
  refused("sums of 1 site take", [](Recipe&) {});
}

TEST_F(Pipeline, CorrectionBringsTheStreamNearer) {
  const ShiftResult result = Run("bi:0.34", 8);
  EXPECT_EQ(result.selection.scores.size(), 6u);
  EXPECT_EQ(result.selection.removed.size(), 2u);
  const std::vector<double> original = Stream(DepthPlan::Original(kLayers));
  EXPECT_LT(test::RelativeError(Stream(result.corrected), original),
            test::RelativeError(Stream(result.pruned), original));
  for (const FitReport& site : result.sites) {
    EXPECT_EQ(site.rank, 8);
    EXPECT_EQ(site.singular_values.size(), static_cast<size_t>(kWidth));
    EXPECT_GT(site.r2_fit, 0);
  }
}

TEST_F(Pipeline, LargeLambdaLeavesThePrunedModelUpToTheMean) {
  const ShiftResult result = Run("reverse*:2", 0, Merge::kOff, "1e12");
  const auto& lra = *result.corrected.stages[3].adapter().lra;
  for (float x : lra.a.span()) EXPECT_LT(std::abs(x), 1e-8f);
  EXPECT_NEAR(result.sites[0].r2_fit, 0.0, 1e-6);
}

// A budget that leaves nothing but the biases: what runs is the mean update.
TEST_F(Pipeline, RankZeroIsTheMeanUpdate) {
  Recipe options{.mode = Calibration::kIndependent};
  options.prune = ParsePrune("layers=1,4");
  options.rank = ParseRank("budget:32");
  NoProgress progress;
  const ShiftResult result = Shift({context_, model_, calibration_, progress}, options);
  for (const FitReport& site : result.sites) {
    EXPECT_EQ(site.rank, 0);
    EXPECT_NEAR(site.r2_fit, 0, 1e-6);
  }
  const auto& lra = *result.corrected.stages[1].adapter().lra;
  const Matrix<double> mean = SumsOf(1).DeltaMean();
  for (int64_t j = 0; j < kWidth; ++j) EXPECT_NEAR(lra.b(0, j), mean(0, j), 1e-6);
  // As it runs: a rank-1 map of zeros with the same bias gives the same stream.
  DepthPlan same = result.corrected;
  const auto as_rank_one = [](const AdapterStage& adapter) -> Stage {
    return AdapterStage{
        adapter.parts,
        std::make_shared<const Lra>(
            Lra{{}, Matrix<float>::Zeros(kWidth, 1), Matrix<float>::Zeros(1, kWidth), adapter.lra->b.Clone()})};
  };
  for (Stage& stage : same.stages)
    stage = stage.Visit([](const BlockStage& block) -> Stage { return block; }, as_rank_one);
  EXPECT_EQ(Stream(result.corrected), Stream(same));
}

TEST_F(Pipeline, MergedRunsLikeTheSequenceOfItsSites) {
  for (const Merge merge : {Merge::kFull, Merge::kLowRank}) {
    const ShiftResult result = Run("layers=2-4", 5, merge);
    ASSERT_TRUE(result.merged.has_value());
    EXPECT_EQ(result.merged->stages.size(), 4u);
    EXPECT_LT(test::RelativeError(Stream(*result.merged), Stream(result.corrected)), 1e-5);
  }
}

TEST_F(Pipeline, WithoutHeldoutTextItsFitIsNotANumber) {
  calibration_.heldout.clear();
  EXPECT_TRUE(std::isnan(Run("reverse:1", 2).sites[0].r2_heldout));
}

TEST_F(Pipeline, RefusesARankAboveTheHiddenSize) {
  EXPECT_THROW(Run("reverse:1", kWidth + 1), UsageError);
  EXPECT_THROW(Run("reverse:1", -1), UsageError);
}

// Counts batches that run through the model: every pass reports its tokens.
class Counter : public Progress {
 public:
  void Begin(std::string_view phase, int64_t) override { phases_.emplace_back(phase); }
  void Advance(int64_t) override {}
  void End() override {}
  const std::vector<std::string>& phases() const { return phases_; }

 private:
  std::vector<std::string> phases_;
};

// A selection by name runs no pass, so the fit has a pass of its own.
TEST_F(Pipeline, SelectionAndCalibrationShareAPassToTheBitsOfTwo) {
  struct Case {
    const char *prune, *correction;
    Calibration mode = Calibration::kIndependent;
    std::function<void(Recipe&)> change = [](Recipe&) {};
    const char* spared = "calibrating";  // the phase that is left out; null: it begins later
  };
  const auto weighted = [](Recipe& o) { o.weighting.norm = true; };
  const auto healed = [](Recipe& o) { o.heal = Heal::kAll; };
  const auto merged = [](Recipe& o) { o.merge = Merge::kFull; };
  const Case cases[] = {
      {"bi:2", "lra"},
      {"bi:2,keep=first:1", "lra", Calibration::kIndependent, weighted},
      {"bi:frobenius:3", "generic-affine"},
      {"angular:2", "lra", Calibration::kIndependent, healed},
      {"streamline:2", "bias"},
      {"bi:2", "lra", Calibration::kIndependent, merged, nullptr},
      {"bi:2,unit=half", "lra", Calibration::kIndependent, weighted, nullptr},
      {"bi:2", "replaceme", Calibration::kIndependent, weighted, nullptr},
      {"bi:2", "lra", Calibration::kSequential, weighted, "calibrating up to the first site"},
      {"bi:2", "lra", Calibration::kDrift, healed, "calibrating up to the first site"},
      {"bi:2,unit=half", "lra", Calibration::kDrift, weighted, "calibrating up to the first site"},
      {"bi:2", "joint", Calibration::kIndependent, weighted, "calibrating up to the first removed block"},
      {"bi:2", "none", Calibration::kIndependent, healed, "calibrating up to the first removed block"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << c.prune << ", " << c.correction << ", " << Name(c.mode));
    Recipe options{.mode = Calibration::kIndependent};
    options.prune = ParsePrune(c.prune);
    options.correction = c.correction;
    if (CorrectionOf(options).has_rank()) options.rank = RankSpec::Fixed(4);
    options.mode = c.mode;
    c.change(options);
    if (!CorrectionOf(options).accepts.has(Setting::kWeights)) options.weighting = {};
    Counter counter;
    const ShiftResult shared = Shift({context_, model_, calibration_, counter}, options);
    NoProgress progress;
    const Selection alone =
        SelectLayers(options.prune, {context_, model_.weights, &calibration_.fit, options.seed}, progress);
    EXPECT_EQ(shared.selection.removed, alone.removed);
    EXPECT_EQ(shared.selection.scores, alone.scores);
    options.prune = ParsePrune("layers=0");
    options.prune.layers = alone.removed;
    const ShiftResult apart = Shift({context_, model_, calibration_, progress}, options);
    EXPECT_EQ(shared.corrected.Fingerprint(), apart.corrected.Fingerprint());
    ASSERT_EQ(shared.sites.size(), apart.sites.size());
    for (size_t i = 0; i < apart.sites.size(); ++i) {
      EXPECT_EQ(shared.sites[i].tokens, apart.sites[i].tokens);
      EXPECT_EQ(shared.sites[i].r2_heldout, apart.sites[i].r2_heldout);
    }
    const auto& phases = counter.phases();
    EXPECT_EQ(phases.front(), "selecting layers");
    const char* const pass = c.spared != nullptr ? c.spared : "calibrating";
    EXPECT_EQ(std::count(phases.begin(), phases.end(), pass), c.spared != nullptr ? 0 : 1);
  }
}

// The pass does not keep what memory has no room for.
TEST_F(Pipeline, SelectionAndCalibrationTakeTwoPassesWhereMemoryHasNoRoom) {
  int64_t tokens = 0;
  for (const Batch& batch : calibration_.fit) tokens += batch.size();
  Recipe options{.mode = Calibration::kIndependent};
  options.prune = ParsePrune("bi:2");
  options.rank = RankSpec::Fixed(4);
  std::string fingerprint;
  const auto passes = [&] {
    Passes progress;
    const ShiftResult result = Shift({context_, model_, calibration_, progress}, options);
    if (fingerprint.empty()) fingerprint = result.corrected.Fingerprint();
    EXPECT_EQ(result.corrected.Fingerprint(), fingerprint);
    return progress.calibrations;
  };
  // Six candidates, and two sites that have held-out text, too.
  context_.memory = 8 * RidgeSums::Bytes(kWidth);
  EXPECT_EQ(passes(), 0);
  --context_.memory;
  EXPECT_EQ(passes(), 1);
  EXPECT_LT(context_.memory, tokens * kWidth * static_cast<int64_t>(sizeof(float)));
  context_.memory = 2 * SiteSums::Bytes(kWidth);
  EXPECT_EQ(passes(), 1);
}

TEST_F(Pipeline, ThePassThatSelectsIsPlannedByMemoryAndWork) {
  Recipe options{.mode = Calibration::kIndependent};
  options.prune = ParsePrune("bi:2");
  constexpr int64_t kTokens = 1000, kStream = kTokens * kWidth * 4;
  const int64_t room = 8 * RidgeSums::Bytes(kWidth);
  const auto plan = [&](const PassMachine& machine) {
    return PlanSelectionPass(options, *model_.weights, kTokens, machine);
  };
  const SelectionPass nothing, sums{0, 6, {}}, one{0, 0, {2}}, two{0, 0, {1, 3}};
  EXPECT_EQ(plan({.memory = room}), sums);
  EXPECT_EQ(plan({.memory = room - 1}), nothing);
  EXPECT_EQ(plan({.memory = 2 * kStream, .gpu = true}), two) << "the middle of the halves of 0 .. 4";
  EXPECT_EQ(plan({.memory = 2 * kStream - 1, .gpu = true}), one);
  EXPECT_EQ(plan({.memory = kStream - 1, .gpu = true}), nothing);
  EXPECT_EQ(plan({.memory = 1 << 30, .alone = false}), nothing);
  // Four blocks that stay take 4 * 3 * 16^2 operations per token, and a pass 6 * 2 * 1952.
  EXPECT_EQ(plan({.memory = 1 << 30, .float64_cost = 3.8}), sums);
  EXPECT_EQ(plan({.memory = 1 << 30, .float64_cost = 3.82}), two);
  EXPECT_EQ(PassMachine::Float64Cost(Isa::kAmx, DType::kBFloat16), 16);
  EXPECT_EQ(PassMachine::Float64Cost(Isa::kAvx512, DType::kBFloat16), 6);
  EXPECT_EQ(PassMachine::Float64Cost(Isa::kAmx, DType::kFloat32), 3);
  options.prune = ParsePrune("bi:2,keep=first:1,last:1");
  EXPECT_EQ(plan({.memory = 1 << 30}), (SelectionPass{1, 4, {}}));
  options.mode = Calibration::kDrift;
  EXPECT_EQ(plan({.memory = 1 << 30}), (SelectionPass{0, 0, {1, 2, 3, 4, 5}})) << "from the first candidate on";
  EXPECT_EQ(plan({.memory = 6 * kStream}), (SelectionPass{0, 0, {1, 3, 5}})) << "as many as half of the memory takes";
  EXPECT_EQ(plan({.memory = 6 * kStream - 1}), (SelectionPass{0, 0, {1, 2}})) << "of 1 .. 3";
  EXPECT_EQ(plan({.memory = 1 << 30, .gpu = true}), (SelectionPass{0, 0, {1, 2}}));
  options.mode = Calibration::kSequential;
  EXPECT_EQ(plan({.memory = 1 << 30}), (SelectionPass{0, 0, {1, 2}})) << "nothing is fitted towards the original";
  options.mode = Calibration::kDrift;
  for (const char* prune : {"layers=1", "reverse:2", "ppl:2", "correctable:2"}) {
    options.prune = ParsePrune(prune);
    EXPECT_EQ(plan({.memory = 1 << 30}), nothing) << prune;
  }
  options.prune = ParsePrune("bi:2");
  options.gram.save = "sums";
  EXPECT_EQ(plan({.memory = 1 << 30}), nothing);
}

TEST_F(Pipeline, SavedSumsGiveOtherFitsWithoutRunningTheModel) {
  const auto file = directory_ / "sums";
  Recipe options{.mode = Calibration::kIndependent};
  options.prune = ParsePrune("bi:2");
  options.rank = RankSpec::Full();
  options.gram.save = file;
  options.gram.all_layers = true;
  NoProgress progress;
  const ShiftResult saved = Shift({context_, model_, calibration_, progress}, options);

  for (const char* prune : {"bi:2", "bi:3", "layers=0,2", "reverse:1"}) {
    SCOPED_TRACE(prune);
    options.prune = ParsePrune(prune);
    options.rank = RankSpec::Fixed(3);
    options.lambda = ParseLambda("1e-2rel");
    options.factorization = Factorization::kSvd;
    options.gram = {{file}, {}, false};
    Counter counter;
    const ShiftResult loaded = Shift({context_, model_, {}, counter}, options);
    EXPECT_EQ(counter.phases(), (std::vector<std::string>{"solving", "factorizing"}));
    options.gram = {};
    const ShiftResult fresh = Shift({context_, model_, calibration_, progress}, options);
    EXPECT_EQ(loaded.selection.removed, fresh.selection.removed);
    EXPECT_EQ(Stream(loaded.corrected), Stream(fresh.corrected));
    EXPECT_EQ(loaded.calibration, calibration_.source);
    EXPECT_EQ(loaded.sites[0].r2_heldout, fresh.sites[0].r2_heldout);
  }
  EXPECT_EQ(saved.selection.removed.size(), 2u);
}

TEST_F(Pipeline, SaysWhatSavedSumsLack) {
  const auto file = directory_ / "sums";
  Recipe options{.mode = Calibration::kIndependent};
  options.prune = ParsePrune("layers=1,4");
  options.rank = RankSpec::Full();
  options.gram.save = file;
  NoProgress progress;
  Shift({context_, model_, calibration_, progress}, options);
  options.gram.load = {file};
  EXPECT_THROW(Shift({context_, model_, calibration_, progress}, options), UsageError);  // saved and loaded
  options.gram.save.clear();
  options.prune = ParsePrune("layers=1,3");
  EXPECT_THROW(Shift({context_, model_, {}, progress}, options), Error);  // layer 3 was not saved
  options.prune = ParsePrune("bi:2");
  EXPECT_THROW(Shift({context_, model_, {}, progress}, options), Error);  // no scores saved, no text given
  const Model other = MakeModel(8);
  options.prune = ParsePrune("layers=1,4");
  EXPECT_THROW(Shift({context_, other, {}, progress}, options), Error);
}

}  // namespace
}  // namespace shiftrt

// SPDX-License-Identifier: Apache-2.0
// Tries every pair of options with every correction, and every criterion with every correction: each pair is refused
// with the message of the table before any work, or it runs and gives finite numbers.
#include "shift/options.h"

#include <cmath>
#include <functional>
#include <optional>
#include <set>

#include "runtime/check.h"
#include "shift/measure/loss.h"
#include "shift/pipeline.h"
#include "tests/models/fixtures.h"
#include "tests/shift/small_model.h"

namespace shiftrt {
namespace {

class CountsWork : public Progress {
 public:
  void Begin(std::string_view, int64_t) override { ++begun; }
  void Advance(int64_t) override {}
  void End() override {}

  int begun = 0;
};

struct Choice {
  const char* name;
  std::function<void(Recipe&)> apply;
};

std::optional<std::string> RefusalOf(const Recipe& options, const ModelConfig& config, bool split = false) {
  try {
    CheckOptions(options, config, split);
    return std::nullopt;
  } catch (const UsageError& error) {
    EXPECT_FALSE(error.field().empty()) << error.what();
    EXPECT_EQ(error.reason().find("--"), std::string::npos) << "the library has no flags: " << error.what();
    return error.what();
  }
}

class Pairs : public test::SmallModel {
 protected:
  Pairs() { calibration_ = MakeCalibration(4, 16); }

  static Recipe Options(const Correction& correction, const std::string& prune) {
    Recipe options{.mode = Calibration::kIndependent};
    options.prune = ParsePrune(prune);
    options.correction = correction.name;
    options.rank = RankSpec::Fixed(3);
    options.lambda = ParseLambda("0.1");
    return options;
  }

  std::vector<Choice> Choices() const {
    const std::filesystem::path sums = directory_ / "sums";
    return {
        {"nothing", [](Recipe&) {}},
        {"halves", [](Recipe& o) { o.prune = ParsePrune("layers=2.attn,3.mlp-5"); }},
        {"auto", [](Recipe& o) { o.mode = Calibration::kAuto; }},
        {"sequential", [](Recipe& o) { o.mode = Calibration::kSequential; }},
        {"drift", [](Recipe& o) { o.mode = Calibration::kDrift; }},
        {"full", [](Recipe& o) { o.rank = RankSpec::Full(); }},
        {"budget", [](Recipe& o) { o.rank = ParseRank("budget:400"); }},
        {"energy", [](Recipe& o) { o.rank = ParseRank("energy:0.5"); }},
        {"svd", [](Recipe& o) { o.factorization = Factorization::kSvd; }},
        {"holdout", [](Recipe& o) { o.lambda = ParseLambda("holdout"); }},
        {"penalize", [](Recipe& o) { o.penalize_bias = true; }},
        {"norm", [](Recipe& o) { o.weighting.norm = true; }},
        {"span", [](Recipe& o) { o.span = true; }},
        {"merge", [](Recipe& o) { o.merge = Merge::kFull; }},
        {"heal", [](Recipe& o) { o.heal = Heal::kAll; }},
        {"gate", [](Recipe& o) { o.gate = true; }},
        {"save", [=](Recipe& o) { o.gram.save = sums; }},
        {"save all", [=](Recipe& o) { o.gram.save = sums, o.gram.all_layers = true; }},
        {"load", [=](Recipe& o) { o.gram.load = {sums}; }},
    };
  }

  // Makes the file of sums that `options` load.
  void Save(Recipe options) {
    options.gram = {{}, directory_ / "sums", false};
    options.heal = Heal::kOff;
    options.gate = false;
    options.merge = Merge::kOff;
    NoProgress progress;
    Shift({context_, model_, calibration_, progress}, options);
  }

  // Returns whether the options were refused.
  bool Try(const Recipe& options) {
    const std::optional<std::string> refusal = RefusalOf(options, model_.weights->config);
    std::filesystem::remove(directory_ / "sums");
    if (!refusal && !options.gram.load.empty()) Save(options);
    CountsWork work;
    try {
      const ShiftResult result = Shift({context_, model_, calibration_, work}, options);
      EXPECT_FALSE(refusal) << *refusal;
      const DepthPlan& plan = result.merged ? *result.merged : result.corrected;
      const double loss = MeanLoss(context_, model_.weights, plan, calibration_.heldout, work);
      EXPECT_TRUE(std::isfinite(loss)) << loss;
    } catch (const UsageError& error) {
      EXPECT_EQ(refusal.value_or("nothing"), error.what());
      EXPECT_EQ(work.begun, 0) << error.what();
    }
    return refusal.has_value();
  }
};

// A recipe that names no correction is repaired by joint, or by lra where joint refuses a setting that lra takes.
TEST_F(Pairs, ARecipeWithoutACorrectionGetsOneThatTakesItsSettings) {
  int adapters = 0;
  for (const Choice& choice : Choices()) {
    for (const bool split : {false, true}) {
      Recipe recipe{.prune = ParsePrune("layers=2,3")};
      recipe.rank = RankSpec::Fixed(3);
      choice.apply(recipe);
      std::string why;
      const Recipe named = WithCorrection(recipe, model_.weights->config, split, &why);
      Recipe joint = recipe;
      joint.correction = "joint";
      const bool taken =
          !RefusalOf(joint, model_.weights->config, split).has_value() && recipe.mode == Calibration::kAuto;
      EXPECT_EQ(named.correction, taken ? "joint" : "lra") << choice.name;
      EXPECT_EQ(why.empty(), taken) << choice.name << ": " << why;
      EXPECT_TRUE(split || CorrectionName(recipe) == named.correction) << choice.name;
      Recipe lra = recipe;
      lra.correction = "lra";
      EXPECT_TRUE(taken ||
                  RefusalOf(named, model_.weights->config, split) == RefusalOf(lra, model_.weights->config, split))
          << choice.name;
      adapters += taken ? 0 : 1;
    }
  }
  EXPECT_GT(adapters, 8);
  EXPECT_EQ(WithCorrection({.correction = "bias"}, model_.weights->config, true).correction, "bias");
}

TEST_F(Pairs, OptionsRunOrAreRefusedBeforeAnyWork) {
  const std::vector<Choice> choices = Choices();
  for (const Correction& correction : Corrections()) {
    int refused = 0, ran = 0;
    for (size_t a = 0; a < choices.size(); ++a)
      for (size_t b = a; b < choices.size(); ++b) {
        SCOPED_TRACE(fmt::format("{}: {}, {}", correction.name, choices[a].name, choices[b].name));
        Recipe options = Options(correction, "layers=2,3,5");
        choices[a].apply(options);
        choices[b].apply(options);
        ++(Try(options) ? refused : ran);
      }
    EXPECT_GT(refused, 0) << correction.name;
    EXPECT_GT(ran, 1) << correction.name;
  }
}

TEST_F(Pairs, CriteriaGoWithEveryCorrectionOrRefuseHalves) {
  for (const Criterion& criterion : Criteria())
    for (const Correction& correction : Corrections())
      for (const char* unit : {"", ",unit=half"}) {
        const std::string prune = fmt::format("{}:2,keep=first:1{}", criterion.name, unit);
        SCOPED_TRACE(fmt::format("{} {}", prune, correction.name));
        const bool halves = *unit != 0;
        EXPECT_EQ(Try(Options(correction, prune)),
                  halves && (!criterion.accepts.has(Setting::kHalves) || !correction.accepts.has(Setting::kHalves)));
      }
}

// The conditions that a table states for a model: a split one is fitted in processes_test.cc, and one that norms its
// updates in rivals_test.cc.
TEST_F(Pairs, ASplitModelAndOneThatNormsItsUpdatesAreRefusedByTheTable) {
  ModelConfig norms = model_.weights->config;
  norms.block.update_norms = true;
  for (const Correction& correction : Corrections()) {
    const Recipe options = Options(correction, "layers=2");
    EXPECT_EQ(RefusalOf(options, norms).has_value(), !correction.accepts.has(Setting::kUpdateNorms));
    EXPECT_EQ(RefusalOf(options, model_.weights->config, true).has_value(), !correction.accepts.has(Setting::kSplit));
  }
  Recipe heals = Options(Corrections().front(), "layers=2");
  heals.heal = Heal::kDown;
  EXPECT_TRUE(RefusalOf(heals, norms));
  EXPECT_FALSE(RefusalOf(heals, model_.weights->config));
  NoProgress progress;
  EXPECT_THROW(
      SelectLayers(ParsePrune("prune-comp:1"), {context_, GoldenWeights("gemma2"), &calibration_.fit}, progress),
      UsageError);
}

TEST_F(Pairs, TextIsNeededByWhatReadsIt) {
  const CalibrationSet none;
  NoProgress progress;
  const ShiftJob job = {context_, model_, none, progress};
  for (const Correction& correction : Corrections())
    for (const char* prune : {"layers=2,3,5", "reverse:2", "magnitude-l1:2,keep=first:1", "bi:2"})
      for (const Heal heal : {Heal::kOff, Heal::kAll}) {
        Recipe options = Options(correction, prune);
        options.heal = heal;
        if (RefusalOf(options, model_.weights->config)) continue;
        SCOPED_TRACE(fmt::format("{} {} {}", correction.name, prune, Name(heal)));
        if (!ReadsText(options, /*scored=*/false)) {
          EXPECT_FALSE(Shift(job, options).pruned.blocks() == kLayers);
          continue;
        }
        try {
          Shift(job, options);
          ADD_FAILURE();
        } catch (const UsageError& error) {
          EXPECT_EQ(error.field(), "calibration");
        }
      }
  EXPECT_FALSE(ReadsText(Options(FindCorrection("none"), "layers=2"), /*scored=*/false));
  EXPECT_FALSE(ReadsText(Options(FindCorrection("laco"), "magnitude-l1:2"), /*scored=*/false));
  EXPECT_TRUE(ReadsText(Options(FindCorrection("none"), "bi:2"), /*scored=*/false));
  EXPECT_TRUE(ReadsText(Options(FindCorrection("bias"), "layers=2"), /*scored=*/false));
}

TEST(Settings, AreInTheOrderOfTheEnumeration) {
  ASSERT_EQ(Settings().size(), static_cast<size_t>(Setting::kCount));
  for (size_t i = 0; i < Settings().size(); ++i) EXPECT_EQ(Settings()[i].setting, static_cast<Setting>(i));
  for (const auto& [first, second, why] : SettingConflicts())
    EXPECT_FALSE(RowOf(first).field.empty()) << "the first has the field at fault: " << why;
}

}  // namespace
}  // namespace shiftrt

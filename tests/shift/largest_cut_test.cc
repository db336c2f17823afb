// SPDX-License-Identifier: Apache-2.0
#include "shift/largest_cut.h"

#include <cmath>
#include <map>

#include "engine/decoder.h"
#include "runtime/check.h"
#include "shift/criteria/criteria.h"
#include "tests/shift/small_model.h"

namespace shiftrt {
namespace {

class LargestCut : public test::SmallModel {
 protected:
  Recipe RecipeFor(const std::string& prune, const std::string& correction = "lra") {
    Recipe recipe{.correction = correction, .mode = Calibration::kIndependent};
    recipe.prune = ParsePrune(prune);
    recipe.rank = RankSpec::Fixed(4);
    return recipe;
  }
  ShiftResult Run(const std::string& prune, const std::string& correction = "lra") {
    NoProgress quiet;
    return Shift({context_, model_, calibration_, quiet}, RecipeFor(prune, correction));
  }
  // Mean KL(original || plan) over the held-out tokens, from the logits of both in float64.
  double DivergenceOf(const DepthPlan& plan) {
    Decoder original(context_, model_.weights, DepthPlan::Original(kLayers)), repaired(context_, model_.weights, plan);
    double sum = 0;
    int64_t tokens = 0;
    for (const Batch& batch : calibration_.heldout) {
      const Matrix<float> teacher = Logits(original, batch), student = Logits(repaired, batch);
      for (int64_t t = 0; t + 1 < batch.size(); ++t, ++tokens) sum += Divergence(teacher.row(t), student.row(t));
    }
    return sum / static_cast<double>(tokens);
  }

 private:
  static Matrix<float> Logits(Decoder& decoder, const Batch& batch) { return decoder.Logits(decoder.Forward(batch)); }
  static double Divergence(const float* p, const float* q) {
    double p_sum = 0, q_sum = 0, sum = 0;
    for (int64_t v = 0; v < kVocab; ++v) p_sum += std::exp(double{p[v]}), q_sum += std::exp(double{q[v]});
    for (int64_t v = 0; v < kVocab; ++v)
      sum += std::exp(double{p[v]}) / p_sum * (p[v] - std::log(p_sum) - q[v] + std::log(q_sum));
    return sum;
  }
};

TEST_F(LargestCut, RemovesAsManyBlocksAsStayWithinTheDivergence) {
  // The divergence of each cut by itself; a random model has little in its deep blocks.
  std::map<int64_t, double> alone;
  for (int64_t units = 1; units <= 3; ++units)
    alone[units] = DivergenceOf(Run(fmt::format("reverse:{}", units)).corrected);
  ASSERT_LT(alone[1], alone[2]);
  ASSERT_LT(alone[2], alone[3]);
  for (int64_t units = 1; units <= 3; ++units) {
    // Between this cut and the next.
    const double limit = units < 3 ? (alone[units] + alone[units + 1]) / 2 : 2 * alone[3];
    const ShiftResult found = Run(fmt::format("reverse:max-kl={}", limit));
    SCOPED_TRACE(units);
    EXPECT_EQ(std::ssize(found.selection.removed), units);
    const ShiftResult same = Run(fmt::format("reverse:{}", units));
    EXPECT_EQ(found.corrected.Fingerprint(), same.corrected.Fingerprint());
    ASSERT_GE(found.cuts.size(), 2u);
    const CutReport& last = found.cuts.back();
    EXPECT_EQ(last.units, units);
    EXPECT_EQ(last.removed, found.selection.removed);
    EXPECT_EQ(last.tokens, calibration_.fit_tokens);
    EXPECT_TRUE(last.within);
    EXPECT_NEAR(last.divergence, alone[units], 1e-5 * alone[units]);
    EXPECT_GT(last.error, 0);
    EXPECT_LT(last.error, last.divergence);
    for (const CutReport& cut : found.cuts) {
      EXPECT_EQ(cut.within, cut.units <= units);
      EXPECT_NEAR(cut.divergence, alone[cut.units], 1e-5 * alone[cut.units]);
    }
  }
}

TEST_F(LargestCut, CountsHalvesAndLeavesTheCorrectionOut) {
  const ShiftResult two = Run("reverse:2,unit=half", "none");
  const double limit = 1.01 * DivergenceOf(two.corrected);
  const ShiftResult found = Run(fmt::format("reverse:max-kl={},unit=half", limit), "none");
  EXPECT_GE(found.cuts.back().units, 2);
  EXPECT_LE(found.cuts.back().divergence, limit);
  EXPECT_TRUE(found.sites.empty());
}

TEST_F(LargestCut, RefusesWhatItCannotFind) {
  const auto message = [&](const std::string& prune) -> std::string {
    try {
      Run(prune);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message("reverse:max-kl=1e-12").find("without 5 alone"), std::string::npos)
      << message("reverse:max-kl=1e-12");
  calibration_.heldout.clear();
  EXPECT_NE(message("reverse:max-kl=1").find("held-out"), std::string::npos) << message("reverse:max-kl=1");
  Recipe loads = RecipeFor("bi:max-kl=1");
  loads.gram.load = {directory_ / "sums"};
  NoProgress quiet;
  EXPECT_THROW(Shift({context_, model_, calibration_, quiet}, loads), UsageError);
}

TEST_F(LargestCut, TheAmountIsAWordThatIsReadAgain) {
  for (const char* text : {"bi:max-kl=0.2", "streamline:max-kl=0.05,keep=first:1", "bi:max-kl=1e-09,unit=half"}) {
    EXPECT_EQ(Format(ParsePrune(text)), text);
    EXPECT_GT(ParsePrune(text).max_divergence, 0);
  }
  for (const char* text :
       {"bi:max-kl=", "bi:max-kl=0", "bi:max-kl=-1", "bi:max-kl=nan", "bi:max-kl=inf", "bi:max-kl=1x"})
    EXPECT_THROW(ParsePrune(text), UsageError) << text;
  // Half of the blocks at most, and what keep= leaves.
  EXPECT_EQ(RemovalCount(ParsePrune("bi:max-kl=0.2"), *model_.weights), 3);
  EXPECT_EQ(RemovalCount(ParsePrune("bi:max-kl=0.2,unit=half"), *model_.weights), 6);
  EXPECT_EQ(RemovalCount(ParsePrune("bi:max-kl=0.2,keep=first:3,last:2"), *model_.weights), 1);
  EXPECT_THROW(RemovalCount(ParsePrune("bi:max-kl=0.2,keep=first:4,last:2"), *model_.weights), UsageError);
  NoProgress quiet;
  EXPECT_THROW(SelectLayers(ParsePrune("bi:max-kl=0.2"), {context_, model_.weights, &calibration_.fit, 0}, quiet),
               UsageError)
      << "without a repair";
}

}  // namespace
}  // namespace shiftrt

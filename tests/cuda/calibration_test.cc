// SPDX-License-Identifier: Apache-2.0
// Tests the method on the device: sums of tapped rows, selection and fits are compared with those of the CPU, on the
// emulator and, if there is one, on a GPU.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/collector.h"
#include "runtime/check.h"
#include "runtime/cuda/cuda.h"
#include "runtime/random.h"
#include "shift/corrections/corrections.h"
#include "shift/criteria/correctable.h"
#include "shift/criteria/influence.h"
#include "shift/refit/sequential_fit.h"
#include "shift/sums/collect.h"
#include "tests/cuda/models.h"
#include "tests/cuda/sums.h"

namespace shiftrt {
namespace {

// The sums are quadratic in streams that differ by the rounding of the two devices.
constexpr double kTolerance = 1e-5;

class CalibrationOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!gpu::WhyUnavailable().empty()) GTEST_SKIP() << gpu::WhyUnavailable();
    model_.weights = MakeWeights({.layers = 4}, DType::kFloat32);
    Random random(3);
    for (int i = 0; i < 5; ++i) {
      Batch batch;
      for (const int length : {7, 12}) {
        std::vector<int32_t> tokens(length);
        for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(model_.weights->config.vocab));
        batch.Add(tokens);
      }
      (i == 4 ? calibration_.heldout : calibration_.fit).push_back(batch);
      (i == 4 ? calibration_.heldout_tokens : calibration_.fit_tokens) += batch.size();
    }
  }

  int64_t Hidden() const { return model_.weights->config.hidden; }

  CalibrationSums Collected(Device device, const std::vector<SiteSums>& wanted, PassCheckpoint* checkpoint = nullptr) {
    CalibrationSums sums;
    for (const SiteSums& site : wanted) {
      sums.sites.emplace_back(site.site, Hidden(), site.input);
      sums.sites.back().weighting = site.weighting;
    }
    Collect({On(device), model_, calibration_, quiet_}, sums, checkpoint);
    return sums;
  }

  void ExpectSums(const std::vector<SiteSums>& wanted) {
    const CalibrationSums here = Collected(Device::kCpu, wanted), there = Collected(Device::kCuda, wanted);
    for (size_t i = 0; i < wanted.size(); ++i) {
      SCOPED_TRACE("site " + wanted[i].site.Name());
      EXPECT_GT(there.sites[i].fit.tokens(), 0);
      ExpectClose(there.sites[i].fit, here.sites[i].fit, kTolerance);
      ExpectClose(there.sites[i].heldout, here.sites[i].heldout, kTolerance);
    }
  }

  SiteSums Wanted(const Site& site, const std::string& weighting = "none", SiteInput input = SiteInput::kStream) {
    SiteSums wanted(site, Hidden(), input);
    wanted.weighting = ParseTokenWeights(weighting);
    return wanted;
  }

  Model model_;
  CalibrationSet calibration_;
  NoProgress quiet_;
};

TEST_F(CalibrationOnGpu, SumsOfSitesAndSpansAreTheCpus) {
  std::vector<SiteSums> wanted;
  wanted.push_back(Wanted({0}));
  wanted.push_back(Wanted({1, 2}));
  wanted.push_back(Wanted({2}));
  wanted.push_back(Wanted({3}, "none", SiteInput::kMlpBefore));
  ExpectSums(wanted);
}

TEST_F(CalibrationOnGpu, SumsOfRecurrentBlocksAndMixturesAreTheCpus) {
  for (const Shape& shape : {kQwen35, kQwen3Next}) {
    SCOPED_TRACE(shape.type);
    model_.weights = MakeWeights(shape, DType::kFloat32);
    std::vector<SiteSums> wanted;
    wanted.push_back(Wanted({0}));
    wanted.push_back(Wanted({1}));
    ExpectSums(wanted);
  }
}

TEST_F(CalibrationOnGpu, SumsOfWeightedTokensAreTheCpus) {
  std::vector<SiteSums> wanted;
  wanted.push_back(Wanted({0}, "norm"));
  wanted.push_back(Wanted({1}, "norm,first:0.25"));
  wanted.push_back(Wanted({2, 2}, "massive:0.5,first:3"));
  ExpectSums(wanted);
}

TEST_F(CalibrationOnGpu, FitsInSequenceAreTheCpus) {
  const std::vector<Site> sites = {Site::Between(1, 2), Site::Between(3, 6), {3}};  // 0.mlp, 1.mlp-2 and 3
  FitOptions options;
  options.ridge.lambda = ParseLambda("1e-2rel");
  options.rank = RankSpec::Fixed(8);
  for (const Calibration mode : {Calibration::kSequential, Calibration::kDrift}) {
    FittedSites fitted[2];
    for (const Device device : {Device::kCpu, Device::kCuda})
      fitted[device == Device::kCuda] = FitInSequence(
          {On(device), model_, calibration_, quiet_}, sites, {mode},
          [&](const SiteSums& site, Progress& progress) { return FitSites(On(device), {&site}, options, progress); });
    for (size_t i = 0; i < sites.size(); ++i) {
      EXPECT_GT(fitted[1].reports[i].r2_fit, 0.05) << Name(mode);
      EXPECT_NEAR(fitted[1].reports[i].r2_fit, fitted[0].reports[i].r2_fit, 1e-4) << Name(mode);
      EXPECT_NEAR(fitted[1].reports[i].r2_heldout, fitted[0].reports[i].r2_heldout, 1e-3) << Name(mode);
    }
  }
}

TEST_F(CalibrationOnGpu, ProjectionsFittedAgainAreTheCpus) {
  FitOptions options;
  options.ridge.lambda = ParseLambda("1e-1rel");
  options.rank = RankSpec::Fixed(8);
  struct Case {
    const char* name;
    BlockPart removed;
    size_t healed;
  };
  for (const Case& c : {Case{"refit", 1, 4}, Case{"joint", 1, 4}, Case{"norm-refit", 1, 4},
                        Case{"refit", {1, Halves::kMlp}, 4}, Case{"joint", {1, Halves::kAttention}, 5}}) {
    const char* const name = c.name;
    const std::vector<BlockPart> removed = {c.removed};
    SequentialFitResult fitted[2];
    for (const Device device : {Device::kCpu, Device::kCuda}) {
      const Context context = On(device);
      const ShiftJob job = {context, model_, calibration_, quiet_};
      const Correction& correction = FindCorrection(name);
      const SiteCorrection fit = InSequence(correction, job, options);
      fitted[device == Device::kCuda] =
          RefitInSequence(job, DepthPlan::Pruned(4, removed), removed, {&fit, Heal::kAll, options.ridge, {}});
    }
    ASSERT_EQ(fitted[0].healed.size(), c.healed);
    const auto expect = [&](const std::vector<SiteReport>& here, const std::vector<SiteReport>& there) {
      ASSERT_EQ(there.size(), here.size());
      for (size_t i = 0; i < here.size(); ++i) {
        EXPECT_GT(there[i].r2_fit, 0) << name;
        EXPECT_NEAR(there[i].r2_fit, here[i].r2_fit, 1e-3) << name;
        EXPECT_NEAR(there[i].r2_heldout, here[i].r2_heldout, 1e-2) << name;
      }
    };
    expect(fitted[0].sites, fitted[1].sites);
    expect(fitted[0].healed, fitted[1].healed);
  }
}

TEST_F(CalibrationOnGpu, WhatSelectionReadsOffOnePassIsTheCpus) {
  std::map<std::pair<Unit, int64_t>, InfluenceStatistics> windows[2];
  const std::pair<Unit, int64_t> wanted[] = {{Unit::kBlock, 1}, {Unit::kBlock, 2}, {Unit::kHalf, 1}, {Unit::kHalf, 3}};
  std::vector<Correctable> correctable[2][2];  // by unit and device
  for (const Device device : {Device::kCpu, Device::kCuda}) {
    const CriterionInput input = {On(device), model_.weights, &calibration_.fit, 0};
    InfluenceProbe influence(input, quiet_);
    CorrectableProbe adapters(input, quiet_);
    for (const auto& [unit, window] : wanted) influence.Want(unit, window);
    for (const Unit unit : {Unit::kBlock, Unit::kHalf}) adapters.Want(unit, 4);
    Pass pass(On(device), model_.weights);
    pass.Add(influence);
    pass.Add(adapters);
    pass.Run("selecting layers", calibration_.fit, quiet_);
    const int on = device == Device::kCuda ? 1 : 0;
    for (const auto& [unit, window] : wanted)
      windows[on].emplace(std::pair(unit, window), influence.Found(unit, window));
    for (const Unit unit : {Unit::kBlock, Unit::kHalf}) correctable[unit == Unit::kHalf][on] = adapters.Found(unit, 4);
  }
  for (const auto& window : wanted) {
    const InfluenceStatistics &here = windows[0].at(window), &there = windows[1].at(window);
    for (const auto& scores :
         {&InfluenceStatistics::Scores, &InfluenceStatistics::FrobeniusScores, &InfluenceStatistics::AngularScores}) {
      const std::vector<double> a = (there.*scores)(), b = (here.*scores)();
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5 + 1e-4 * b[i]);
    }
  }
  ASSERT_EQ(correctable[1][1].size(), 8u);
  for (const auto& [here, there] : correctable)
    for (size_t i = 0; i < here.size(); ++i) EXPECT_NEAR(there[i].residual, here[i].residual, 1e-3 * here[i].residual);
}

// A run that is saved half way continues from the saved sums.
TEST_F(CalibrationOnGpu, SumsThatWereCompletedHalfWayAreTheSameBits) {
  class EveryBatch : public PassCheckpoint {
   public:
    bool Due() override { return true; }
    void Save() override { ++saved; }
    int saved = 0;
  } every_batch;
  std::vector<SiteSums> wanted;
  wanted.push_back(Wanted({1}));
  const CalibrationSums once = Collected(Device::kCuda, wanted), often = Collected(Device::kCuda, wanted, &every_batch);
  EXPECT_EQ(every_batch.saved, 5);
  EXPECT_EQ(Difference(often.sites[0].fit.Gram(), once.sites[0].fit.Gram()), 0.0);
  EXPECT_EQ(often.sites[0].fit.DeltaSquares(), once.sites[0].fit.DeltaSquares());
  CalibrationSums resumed = CalibrationSums::Empty({1}, Hidden());
  CalibrationSet half = calibration_;
  half.fit.resize(2);
  half.heldout.clear();
  Collect({On(Device::kCuda), model_, half, quiet_}, resumed);
  EXPECT_EQ(resumed.fit_batches, 2);
  Collect({On(Device::kCuda), model_, calibration_, quiet_}, resumed);
  EXPECT_EQ(Difference(resumed.sites[0].fit.Cross(), once.sites[0].fit.Cross()), 0.0);
  EXPECT_EQ(resumed.sites[0].heldout.tokens(), once.sites[0].heldout.tokens());
}

TEST_F(CalibrationOnGpu, NamesTheRowThatIsNotFinite) {
  const std::unique_ptr<Collector> collector = MakeCollector(On(Device::kCuda), model_.weights);
  Matrix<float> inputs = Matrix<float>::Zeros(3, Hidden()), updates = Matrix<float>::Zeros(3, Hidden());
  updates(2, 5) = NAN;
  const KeptRows h = Uploaded(On(Device::kCuda), model_.weights, inputs.view()),
                 delta = Uploaded(On(Device::kCuda), model_.weights, updates.view());
  RidgeSums sums(Hidden());
  const auto adders = collector->MakeAdders({{sums.matrices(), 4, 6, "4-6"}});
  try {
    adders[0]->Add({h.rows(), h.rows(), delta.rows()}, {});
    adders[0]->Complete();
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "calibrating layer 4-6: row 2 of the block's update is not finite");
  }
}

TEST_F(CalibrationOnGpu, KeptRowsComeOverWhenAskedFor) {
  Matrix<float> one(2, Hidden());
  for (int64_t i = 0; i < one.size(); ++i) one.data()[i] = static_cast<float>(i);
  const KeptRows kept = Uploaded(On(Device::kCuda), model_.weights, one.view());
  KeptRows more;
  more.Set(kept.rows());
  more.Add(kept.rows());
  more.Add(kept.rows());
  more.Subtract(kept.rows());
  EXPECT_FALSE(more.rows().on_host());
  EXPECT_THROW(more.rows().host(), Error);
  EXPECT_THROW(more.Add(one.view()), Error);
  const HostRows all = more.rows().ToHost(), second = more.rows().Slice(1, 1).ToHost();
  for (int64_t i = 0; i < one.size(); ++i) EXPECT_EQ(all.view().data[i], 2 * one.data()[i]);
  for (int64_t j = 0; j < Hidden(); ++j) EXPECT_EQ(second.view()(0, j), 2 * one(1, j));
}

// The host takes an eigendecomposition, a GPU a tridiagonal form. The steep sums have directions that hold nothing but
// rounding. Both solvers leave these out by an eigendecomposition, and rounding decides which they are, so that the
// predictions for the tokens are compared and not the maps.
TEST_F(CalibrationOnGpu, GcvChoosesTheLambdaOfTheHost) {
  constexpr int64_t kTokens = 90, kWidth = 48;
  struct Case {
    double decay, largest;
    bool steep, penalize_bias;
  };
  for (const auto& [decay, largest, steep, penalize_bias] :
       {Case{0.95, 30, false, false}, {0.95, 30, false, true}, {0.8, 3000, true, false}, {0.8, 3000, true, true}}) {
    for (const double noise : {0.0, 1.0, 30.0}) {
      SCOPED_TRACE(testing::Message() << "noise " << noise << (steep ? ", steep" : ", flat")
                                      << (penalize_bias ? ", penalised bias" : ""));
      Random random(5);
      Matrix<float> h(kTokens, kWidth), delta(kTokens, kWidth);
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t j = 0; j < kWidth; ++j) {
          const double size = j == 3 ? largest : std::pow(decay, static_cast<double>(j));
          h(t, j) = static_cast<float>(size * random.Normal() + (j == 4 ? 20 : 0));
        }
        for (int64_t j = 0; j < kWidth; ++j)
          delta(t, j) = static_cast<float>(0.5 * h(t, (j + 1) % kWidth) + noise * random.Normal());
      }
      RidgeSums sums(kWidth);
      sums.Add(Context(), h.view(), delta.view());
      const RidgeOptions options{{LambdaSpec::Kind::kGcv, 0}, penalize_bias};
      const RidgeSolution here = SolveRidge(On(Device::kCpu), sums, options),
                          there = SolveRidge(On(Device::kCuda), sums, options);
      // At most a step of the finest grid apart: the score is flat where it is least.
      EXPECT_NEAR(std::log10(there.lambda), std::log10(here.lambda), 1.01 / 64);
      EXPECT_NEAR(std::log10(there.condition), std::log10(here.condition), 1.01 / 64);
      const double limit = there.lambda == here.lambda ? 1e-14 : 1e-2;  // relative, of squares
      double difference = 0, norm = 0;
      for (int64_t i = 0; i < here.a.host().size(); ++i) {
        difference += std::pow(there.a.host().data()[i] - here.a.host().data()[i], 2);
        norm += std::pow(here.a.host().data()[i], 2);
      }
      if (!steep) {
        EXPECT_LE(difference, limit * norm);
      }
      double apart = 0, updates = 0;
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t j = 0; j < kWidth; ++j) {
          double change = there.b(0, j) - here.b(0, j);
          for (int64_t i = 0; i < kWidth; ++i) change += h(t, i) * (there.a.host()(i, j) - here.a.host()(i, j));
          apart += change * change;
          updates += std::pow(delta(t, j), 2);
        }
      }
      EXPECT_LE(apart, limit * updates);
    }
  }
}

}  // namespace
}  // namespace shiftrt

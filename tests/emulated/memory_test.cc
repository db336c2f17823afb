// SPDX-License-Identifier: Apache-2.0
// Tests the behaviour if a device's memory is too small, and counts the bytes copied between host and device. These
// tests run only on the emulator, whose memory can be limited.
#include <gtest/gtest.h>

#include "engine/activations.h"
#include "engine/collector.h"
#include "engine/decoder.h"
#include "kernels/emulated/device.h"
#include "kernels/emulated/machine.h"
#include "runtime/check.h"
#include "runtime/linalg/linalg.h"
#include "runtime/random.h"
#include "shift/criteria/criteria.h"
#include "shift/fit/ridge.h"
#include "shift/selection_pass.h"
#include "shift/sums/collect.h"
#include "tests/cuda/models.h"
#include "tests/engine/rows.h"

namespace shiftrt {
namespace {

class SmallMemory : public testing::Test {
 protected:
  SmallMemory() {
    model_.weights = MakeWeights({.layers = 4}, DType::kFloat32);
    for (int i = 0; i < 3; ++i) (i == 2 ? calibration_.heldout : calibration_.fit).push_back(MakeBatch(9));
  }

  Batch MakeBatch(int64_t tokens) const {
    Random random(7);
    std::vector<int32_t> ids(tokens);
    for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(model_.weights->config.vocab));
    Batch batch;
    batch.Add(ids);
    return batch;
  }
  int64_t Hidden() const { return model_.weights->config.hidden; }
  int64_t SiteBytes() const { return (2 * Hidden() * Hidden() + 3 * Hidden() + 1) * 8; }
  CalibrationSums Collected(Progress& progress, PassCheckpoint* checkpoint = nullptr) {
    CalibrationSums sums = CalibrationSums::Empty({0, 1, 2, 3}, Hidden());
    Collect({context_, model_, calibration_, progress}, sums, checkpoint);
    return sums;
  }
  // The memory that a pass over exactly this many sites needs.
  int64_t RoomFor(int64_t sites) {
    {
      const std::unique_ptr<Collector> collector = MakeCollector(context_, model_.weights);
      KeptRows kept;
      const std::unique_ptr<PendingProducts> products = collector->MakeProducts();
      Decoder decoder(context_, model_.weights, DepthPlan::Original(4),
                      {{3, TapPoint::kUpdate, [&](const Rows& rows, const Batch&) {
                          kept.Set(rows);
                          products->Start(rows, rows);
                          peak_ = emu::AllocatedBytes();
                        }}});
      decoder.Forward(calibration_.fit[0], true);
    }
    const int64_t products = calibration_.fit[0].size() * static_cast<int64_t>(sizeof(RowProducts));
    return peak_ + sites * (SiteBytes() + products);
  }

  Context context_ = On(Device::kCuda);
  Model model_;
  CalibrationSet calibration_;
  NoProgress quiet_;
  int64_t peak_ = 0;
};

// Records the phases.
class Phases : public NoProgress {
 public:
  void Begin(std::string_view phase, int64_t) override { seen.emplace_back(phase); }
  std::vector<std::string> seen;
};

void ExpectSame(const CalibrationSums& a, const CalibrationSums& b) {
  EXPECT_EQ(a.fit_batches, b.fit_batches);
  EXPECT_EQ(a.heldout_batches, b.heldout_batches);
  for (size_t i = 0; i < a.sites.size(); ++i) {
    for (const auto part : {&SiteSums::fit, &SiteSums::heldout}) {
      const RidgeSums &one = a.sites[i].*part, &other = b.sites[i].*part;
      EXPECT_EQ(one.tokens(), other.tokens());
      EXPECT_EQ(one.DeltaSquares(), other.DeltaSquares());
      EXPECT_TRUE(std::equal(one.Cross().span().begin(), one.Cross().span().end(), other.Cross().span().begin()));
      const Matrix<double> gram = one.Gram(), expected = other.Gram();
      EXPECT_TRUE(std::equal(gram.span().begin(), gram.span().end(), expected.span().begin()));
    }
  }
}

TEST_F(SmallMemory, CalibrationSplitsItselfByLayers) {
  const CalibrationSums expected = Collected(quiet_);
  EXPECT_EQ(expected.sites[3].heldout.tokens(), 9);
  Phases phases;
  const emu::MemoryLimit limit(RoomFor(2));
  ExpectSame(Collected(phases), expected);
  const std::vector<std::string> split = {"calibrating, sites 1 to 2 of 4", "calibrating, sites 3 to 4 of 4"};
  const auto seen = std::search(phases.seen.begin(), phases.seen.end(), split.begin(), split.end());
  EXPECT_NE(seen, phases.seen.end()) << fmt::format("{}", fmt::join(phases.seen, "; "));
}

TEST_F(SmallMemory, OneSiteAtATimeIsTheSmallestGroup) {
  const CalibrationSums expected = Collected(quiet_);
  const int64_t one = RoomFor(1);
  {
    const emu::MemoryLimit limit(one);
    ExpectSame(Collected(quiet_), expected);
  }
  const emu::MemoryLimit limit(one - SiteBytes());
  try {
    Collected(quiet_);
    ADD_FAILURE() << "fits";
  } catch (const OutOfMemory& error) {
    const std::string says = error.what();
    for (const char* part : {"the GPU is out of memory", "asks for", "are free"})
      EXPECT_NE(says.find(part), std::string::npos) << says;
  }
}

// After an interruption between two groups, the sums are empty, as their counts say.
TEST_F(SmallMemory, AnInterruptedGroupLeavesNothingHalfDone) {
  class Impatient : public Phases {
   public:
    void Advance(int64_t) override {
      if (seen.back().starts_with("calibrating, sites 3")) throw Interrupted();
    }
  } impatient;
  const emu::MemoryLimit limit(RoomFor(2));
  CalibrationSums sums = CalibrationSums::Empty({0, 1, 2, 3}, Hidden());
  EXPECT_THROW(Collect({context_, model_, calibration_, impatient}, sums), Interrupted);
  EXPECT_EQ(sums.fit_batches, 0);
  for (const SiteSums& site : sums.sites) EXPECT_EQ(site.fit.tokens(), 0);
}

TEST_F(SmallMemory, SelectionSplitsItselfByLayers) {
  const std::vector<PruneSpec> specs = ParsePruneList("bi,correctable,rank=4", "1");
  const CriterionInput input = {context_, model_.weights, &calibration_.fit, 0};
  const std::vector<Selection> expected = SelectLayers(specs, input, quiet_);
  const int64_t room = RoomFor(2) + 2 * Hidden() * 9 * 4;  // the pass stores three streams
  const emu::MemoryLimit limit(room);
  Phases phases;
  const std::vector<Selection> found = SelectLayers(specs, input, phases);
  EXPECT_GT(std::count_if(phases.seen.begin(), phases.seen.end(),
                          [](const std::string& phase) { return phase.starts_with("selecting layers, sites"); }),
            1);
  for (size_t i = 0; i < specs.size(); ++i) EXPECT_EQ(found[i].scores, expected[i].scores);
}

TEST_F(SmallMemory, SelectionGoesOnWithoutTheStreamsItHasNoRoomFor) {
  Recipe options{.mode = Calibration::kIndependent};
  options.prune = ParsePrune("bi:1");
  options.mode = Calibration::kDrift;
  const ShiftJob job = {context_, model_, calibration_, quiet_};
  std::vector<double> expected;
  {
    SharedCalibration enough;
    expected = enough.Select(job, options).front().scores;
    const std::optional<StartStreams> start = enough.TakeStreams(3);
    ASSERT_TRUE(start.has_value());
    EXPECT_EQ(start->layer, 2);
    EXPECT_EQ(start->fit.size(), 2U);
  }
  const int64_t stream = Hidden() * 9 * 4;  // the pass stores three streams of a batch, and would keep two
  const emu::MemoryLimit limit(RoomFor(0) + 2 * stream + stream / 2);
  SharedCalibration little;
  EXPECT_EQ(little.Select(job, options).front().scores, expected);
  EXPECT_FALSE(little.TakeStreams(3).has_value());
}

TEST_F(SmallMemory, WhatTheSolverHasNoRoomForIsSolvedHere) {
  const int64_t n = 240;
  Matrix<double> a = Matrix<double>::Zeros(n, n), b(n, n);
  Random random(2);
  for (int64_t i = 0; i < n; ++i) a(i, i) = 2.0 + random.Uniform();
  for (double& x : b.span()) x = random.Uniform();
  const Context cpu = On(Device::kCpu);
  const emu::MemoryLimit limit(emu::AllocatedBytes() + n * n * 8);  // one of the two matrices
  const Matrix<double> x = b.Clone(), expected = b.Clone(), c(n, n);
  EXPECT_TRUE(linalg::CholeskySolve(context_, a.Clone().view(), x.view(), nullptr));
  EXPECT_TRUE(linalg::CholeskySolve(cpu, a.Clone().view(), expected.view(), nullptr));
  EXPECT_TRUE(std::equal(x.span().begin(), x.span().end(), expected.span().begin()));
  linalg::Gemm(context_, false, false, 1.0, a.view(), expected.view(), 0.0, c.view());
  for (int64_t i = 0; i < c.size(); ++i) EXPECT_NEAR(c.data()[i], b.data()[i], 1e-14);
  const auto values = [&](const Context& context) {
    return linalg::WithSolver(context, 9.0 * n * n * n, 2.0 * n * n,
                              [&](linalg::Solver& solver) { return solver.Eigen(*solver.Uploaded(a.view())); });
  };
  EXPECT_EQ(values(context_), values(cpu));
}

TEST_F(SmallMemory, ABatchTooLargeIsToldWhatWouldFit) {
  Decoder decoder(context_, model_.weights, DepthPlan::Original(4));
  decoder.Forward(MakeBatch(8));
  const int64_t room = emu::AllocatedBytes() + 16 * ActivationBytesPerToken(model_.weights->config, DType::kFloat32);
  const emu::MemoryLimit limit(room);
  try {
    decoder.Forward(MakeBatch(100));
    ADD_FAILURE() << "fits";
  } catch (const OutOfMemory& error) {
    const std::string says = error.what();
    const size_t at = says.find("this batch has 100 tokens, about ");
    ASSERT_NE(at, std::string::npos) << says;
    const int fit = std::stoi(says.substr(at + 33));
    EXPECT_GE(fit, 16);
    EXPECT_LE(fit, 40);
  }
  decoder.Forward(MakeBatch(10));  // the decoder still works
}

TEST_F(SmallMemory, ACacheTooLongIsToldWhatWouldFit) {
  Decoder decoder(context_, model_.weights, DepthPlan::Original(4));
  const int64_t position =
      2 * 4 * 64 * 4;  // bytes per position: keys and values of four layers with one head of 64 in float32
  const emu::MemoryLimit limit(emu::AllocatedBytes() + 50 * position);
  KvCache cache(model_.weights->config, decoder.plan(), 100);
  try {
    decoder.Forward(MakeBatch(1).tokens, cache);
    ADD_FAILURE() << "fits";
  } catch (const OutOfMemory& error) {
    EXPECT_NE(std::string(error.what()).find("a cache of 100 positions was asked for, about 50 would fit"),
              std::string::npos)
        << error.what();
  }
}

// Some of the arrays that both caches share have grown when the memory runs out.
TEST_F(SmallMemory, ACacheTooLongLeavesTheOthersAsTheyAre) {
  Decoder decoder(context_, model_.weights, DepthPlan::Original(4)), other(context_, model_.weights, decoder.plan());
  KvCache cache(model_.weights->config, decoder.plan(), 20), same(model_.weights->config, decoder.plan(), 20);
  const std::vector<int32_t> tokens = MakeBatch(9).tokens, next = {3};
  decoder.Forward(tokens, cache);
  other.Forward(tokens, same);
  KvCache longer(model_.weights->config, decoder.plan(), 100), another(model_.weights->config, decoder.plan(), 100);
  {
    const emu::MemoryLimit limit(emu::AllocatedBytes() + 50 * 2 * 4 * 64 * 4);
    EXPECT_THROW(decoder.Forward(tokens, longer), OutOfMemory);
  }
  EXPECT_EQ(test::Copied(decoder.Forward(next, cache)).span().back(),
            test::Copied(other.Forward(next, same)).span().back());
  EXPECT_EQ(test::Copied(decoder.Forward(tokens, longer)).span().back(),
            test::Copied(other.Forward(tokens, another)).span().back());
}

TEST_F(SmallMemory, ActivationsTakeAboutWhatIsSaid) {
  Decoder decoder(context_, model_.weights, DepthPlan::Original(4));
  decoder.Forward(MakeBatch(20));
  const int64_t before = emu::AllocatedBytes();
  decoder.Forward(MakeBatch(60));
  const auto each = static_cast<double>(emu::AllocatedBytes() - before) / 40,
             said = static_cast<double>(ActivationBytesPerToken(model_.weights->config, DType::kFloat32));
  EXPECT_NEAR(each, said, 0.2 * said);
}

// Three numbers per token and site are copied to the host, and the sums when somebody asks for them.
TEST_F(SmallMemory, CalibrationBringsOverNeitherActivationsNorSums) {
  CalibrationSums sums = CalibrationSums::Empty({0, 1, 2, 3}, Hidden());
  const int64_t before = emu::BytesToHost();
  Collect({context_, model_, calibration_, quiet_}, sums);
  const int64_t tokens = 27, sites = 4, halves = 2;
  const int64_t products = sites * tokens * static_cast<int64_t>(sizeof(RowProducts));
  EXPECT_EQ(emu::BytesToHost() - before, products);
  for (int i = 0; i < 2; ++i) {
    ExpectSame(sums, sums);
    EXPECT_EQ(emu::BytesToHost() - before, products + sites * halves * SiteBytes()) << "once";
  }
}

// Sums that would take more than a quarter of what is free come over at the end of the pass.
TEST_F(SmallMemory, SumsStayWhereTheyLeaveRoomForSolves) {
  CalibrationSums expected = Collected(quiet_);
  for (SiteSums& site : expected.sites)
    for (RidgeSums* sums : {&site.fit, &site.heldout}) sums->ToHost();
  const int64_t fit = 4 * SiteBytes(), needed = RoomFor(4);
  for (const int64_t spare : {fit, 4 * fit}) {
    const emu::MemoryLimit limit(needed + spare);
    const int64_t before = emu::AllocatedBytes();
    const CalibrationSums sums = Collected(quiet_);
    const int64_t staying = emu::AllocatedBytes() - before;
    EXPECT_LE(staying, (needed + spare - before) / 4);
    if (spare == fit) {
      EXPECT_LT(staying, fit);
    } else {
      EXPECT_GE(staying, fit);
    }
    ExpectSame(sums, expected);
  }
}

// docs/dev/gpu.md: 42 scores in rounds of 1, 25, 4, 6 and 6, at most four per launch, and the diagonal.
TEST_F(SmallMemory, ALambdaByGcvTakesTheDocumentedLaunches) {
  constexpr int64_t kTokens = 200, kWidth = 48;
  Random random(3);
  Matrix<float> h(kTokens, kWidth), delta(kTokens, kWidth);
  for (float& x : h.span()) x = static_cast<float>(random.Normal());
  for (float& x : delta.span()) x = static_cast<float>(random.Normal());
  for (int64_t i = 0; i < delta.size(); ++i) delta.data()[i] += 0.5F * h.data()[i];
  RidgeSums sums(kWidth);
  sums.Add(Context(), h.view(), delta.view());
  const int64_t before = emu::Launches(), in = emu::BytesToDevice(), out = emu::BytesToHost();
  SolveRidge(context_, sums, {});
  EXPECT_EQ(emu::Launches() - before, 1 + 7 + 1 + 2 + 2 + 1);
  // The sums go over once, with vectors for their centring and the bias, the reflectors, and the factors of every
  // score. The map stays.
  constexpr int64_t kSums = (kWidth + 1) * (2 * kWidth + 1), kVectors = (8 + 1 + 2 * 5 + 2 * 42 + 2) * kWidth;
  EXPECT_EQ(emu::BytesToDevice() - in, 8 * (kSums + kVectors));
  EXPECT_LT(emu::BytesToHost() - out, 8 * 20 * kWidth);
}

TEST_F(SmallMemory, ADecodedTokenBringsOverItsId) {
  const DepthPlan plan = DepthPlan::Original(4);
  Decoder decoder(context_, model_.weights, plan);
  KvCache cache(model_.weights->config, plan, 20);
  const Batch text = MakeBatch(9);
  const std::span<const int32_t> tokens(text.tokens);
  for (const int64_t count : {5, 1, 1, 1}) {
    const int64_t before = emu::BytesToHost();
    decoder.NextToken(tokens.subspan(cache.size(), count), cache, {1, 0.9, 5}, 0.4);
    EXPECT_EQ(emu::BytesToHost() - before, 4);
  }
}

}  // namespace
}  // namespace shiftrt

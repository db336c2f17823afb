// SPDX-License-Identifier: Apache-2.0
// The work and memory of the main job: of shapes that nobody here can load, against figures computed by hand, and of
// small ones against what a decoder takes.
#include "estimate/main_job.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include "engine/activations.h"
#include "engine/decoder.h"
#include "tests/estimate/shapes.h"

namespace shiftrt {
namespace {

using test::JobFor;
using test::kLlama405B;
using test::kLlama70B;
using test::ShapesOf;

TEST(MainJob, IsPlannedWithoutTextAndWeights) {
  MainJob job = JobFor(ShapesOf(kLlama405B));
  job.machine = {.memory = int64_t{1} << 50, .alone = false};
  const JobPlan plan = PlanOf(job);
  EXPECT_EQ(plan.units, 31);
  EXPECT_TRUE(plan.removed.empty());
  EXPECT_EQ(plan.sites, 31);
  EXPECT_EQ(plan.adapter_parameters, 31 * 129 * 16384);
  EXPECT_EQ(plan.calibration.fit_batches, 56);
  EXPECT_EQ(plan.calibration.heldout_batches, 8);
  EXPECT_TRUE(plan.unplanned.empty());
  const double pass = 126 * (6'375'342'080.0 * 512 + 65536.0 * 131'328);  // FLOP per sample
  EXPECT_DOUBLE_EQ(plan.Step("select").flops(), 224 * pass);
  EXPECT_DOUBLE_EQ(plan.Step("calibrate").products, 256 * pass);
  EXPECT_DOUBLE_EQ(plan.Step("calibrate").float64, 31 * 131072.0 * 3 * 16384 * 16384);
  // An eigendecomposition and two products of a Gram.
  EXPECT_DOUBLE_EQ(plan.Step("solve").float64, 31 * 13.0 * 16384 * 16384 * 16384);
  // Three variants, of which two lack 31 blocks, and 166 windows of 2048 tokens.
  const double windows = 166 * (6'375'342'080.0 * 2048 + 65536.0 * 2'098'176);
  EXPECT_DOUBLE_EQ(plan.Step("evaluate").products,
                   (126 + 2 * 95) * windows + 3 * HeadFlops(job.weights->config, 166 * 2047));
  EXPECT_DOUBLE_EQ(plan.Step("decode").reads, 3 * 160 * 2 * (405'853'388'800.0 - 128255 * int64_t{16384}));
}

TEST(MainJob, KnowsWhatIsRemovedWhereNoDataDecides) {
  const ModelShapes shapes = ShapesOf(kLlama70B);
  const auto plan = [&](const char* prune) { return PlanOf(JobFor(shapes, prune)); };
  EXPECT_EQ(Names(plan("reverse*:3").removed), "76, 77, 78");
  MainJob named = JobFor(shapes, "layers=3.attn,40-42");
  named.machine.memory = int64_t{1} << 50;
  EXPECT_EQ(Names(PlanOf(named).removed), "3.attn, 40, 41, 42");
  // A pass that collects sums ends after the last of them.
  EXPECT_DOUBLE_EQ(PlanOf(named).Step("calibrate").products, 43 * BlockFlops(*shapes.weights, 0, {256, 512}));
  EXPECT_TRUE(plan("magnitude-l1:3").removed.empty());
  EXPECT_FALSE(plan("magnitude-l1:3").selects);
  EXPECT_EQ(plan("bi:0.25,unit=half").units, 40);
  EXPECT_EQ(plan("bi:params=55B").units, 19);
  EXPECT_THROW(plan("bi:80"), UsageError);
  EXPECT_EQ(plan("bi:max-kl=0.2").units, 40) << "half of the layers at most";
  EXPECT_EQ(plan("bi:max-kl=0.2").unplanned, std::vector<std::string>{"the search for the largest cut"});
}

// A sequential fit: both streams, the fits of projections, healing, and the losses that decide about it.
TEST(MainJob, CountsRefitsHealingAndTheLossesOfHeldOutText) {
  MainJob job = JobFor(ShapesOf(kLlama70B), "layers=40-44");
  job.recipe.correction = "refit";
  const auto block = [&](int64_t tokens) { return BlockFlops(*job.weights, 0, {tokens / 512, 512}); };
  JobPlan plan = PlanOf(job);
  EXPECT_TRUE(plan.sequential);
  EXPECT_TRUE(plan.unplanned.empty());
  // The 39 blocks before the refitted one, both streams up to the last removed block, and the fit.
  EXPECT_DOUBLE_EQ(plan.Step("calibrate").products, (39 + 2 * 6 - 5 + 1) * block(256 * 512));
  EXPECT_DOUBLE_EQ(plan.Step("calibrate").float64, RidgeSumsFlops(28672, 8192, 256 * 512));
  EXPECT_DOUBLE_EQ(plan.Step("solve").float64, SolveFlops(job.recipe.lambda, 28672, 8192));
  EXPECT_EQ(plan.memory.fit, 6 * int64_t{28672} * 28672 * 8);
  EXPECT_EQ(plan.memory.sums, 2 * RidgeSums::Bytes(28672, 8192));
  EXPECT_EQ(plan.memory.streams, 2 * 256 * 512 * 4 * int64_t{8192});

  // The adapter on the norm of what the projection leaves is a fit of its own.
  job.recipe.correction = "norm-refit";
  plan = PlanOf(job);
  EXPECT_DOUBLE_EQ(plan.Step("solve").float64,
                   SolveFlops(job.recipe.lambda, 28672, 8192) + SolveFlops(job.recipe.lambda, 8192, 8192));
  EXPECT_DOUBLE_EQ(plan.Step("calibrate").products, 48 * block(256 * 512));
  job.recipe.correction = "refit";

  job.recipe.heal = Heal::kAll;
  job.recipe.benefit = Benefit::kRequired;
  plan = PlanOf(job);
  const double solves = 35 * (SolveFlops(job.recipe.lambda, 28672, 8192) + SolveFlops(job.recipe.lambda, 8192, 8192));
  EXPECT_DOUBLE_EQ(plan.Step("solve").float64, SolveFlops(job.recipe.lambda, 28672, 8192) + solves);
  constexpr int64_t kLosses = 2 * 16384 + 3 * 8192;
  EXPECT_DOUBLE_EQ(plan.Step("calibrate").products, (39 + 2 * 41 - 5 + 71) * block(256 * 512) + 80 * block(kLosses) +
                                                        HeadFlops(job.weights->config, kLosses));

  job.recover_tokens = 1000;
  EXPECT_GT(PlanOf(job).Step("recover").products, 3 * 1000 * BlockFlopsPerToken(*job.weights) * 75 / 80);
  job.recipe.prune = ParsePrune("bi:0.25");  // where it is unknown what is removed, every block may be its own run
  const double unknown =
      (20 + 60 - 19) * SolveFlops(job.recipe.lambda, 28672, 8192) + 60 * SolveFlops(job.recipe.lambda, 8192, 8192);
  EXPECT_NEAR(PlanOf(job).Step("solve").float64, unknown, 1e-12 * unknown);
  job.recipe.prune = ParsePrune("streamline:0.25");  // they are one run wherever they are
  job.recipe.heal = Heal::kOff;
  EXPECT_DOUBLE_EQ(PlanOf(job).Step("solve").float64, SolveFlops(job.recipe.lambda, 28672, 8192));
}

TEST(MainJob, CountsTheSumsThatASelectionCollects) {
  MainJob job = JobFor(ShapesOf(kLlama70B));
  job.machine.memory = 100 * RidgeSums::Bytes(8192);  // sums of 80 candidates, and of the held-out text of 20 sites
  const JobPlan plan = PlanOf(job);
  EXPECT_EQ(plan.pass.candidates, 80);
  EXPECT_EQ(plan.memory.sums, 100 * RidgeSums::Bytes(8192));
  const double sums = 512 * 3.0 * 8192 * 8192;  // FLOP per sample
  const double pass = 224.0 / 512 * 80 * BlockFlops(*job.weights, 0, {512, 512});
  EXPECT_DOUBLE_EQ(plan.Step("select").products, pass);
  EXPECT_DOUBLE_EQ(plan.Step("select").float64, 80 * 224 * sums);
  EXPECT_DOUBLE_EQ(plan.Step("calibrate").products, pass * 32 / 224);
  EXPECT_DOUBLE_EQ(plan.Step("calibrate").float64, 20 * 32 * sums);
  --job.machine.memory;
  EXPECT_EQ(PlanOf(job).pass.candidates, 0);
}

TEST(MainJob, DividesTheSitesForWhichMemoryHasNoRoom) {
  MainJob job = JobFor(ShapesOf(kLlama70B));
  job.machine.memory = 5 * SiteSums::Bytes(8192) + 1;
  const JobPlan plan = PlanOf(job);
  EXPECT_EQ(plan.passes, 4);  // in groups of five sites
  EXPECT_EQ(plan.memory.sums, 5 * SiteSums::Bytes(8192));
  job.machine.memory = int64_t{1} << 50;
  job.machine.float64_cost = 1000;  // the selection collects nothing
  EXPECT_DOUBLE_EQ(plan.Step("calibrate").products, 4 * PlanOf(job).Step("calibrate").products);
}

TEST(MainJob, HasLongerBatchesAndKeepsStreamsOnAGpu) {
  MainJob job = JobFor(ShapesOf(kLlama70B));
  EXPECT_EQ(PlanOf(job).calibration.fit_batches, 56);
  job.machine = {.memory = int64_t{1} << 40, .gpu = true};
  JobPlan plan = PlanOf(job);
  EXPECT_EQ(plan.calibration.fit_batches, 28);
  EXPECT_EQ(plan.pass, (SelectionPass{0, 0, {15, 45}}));
  EXPECT_EQ(plan.memory.streams, 2 * int64_t{114'688} * 8192 * 4);
  // Without room for more, the sums of one site at a time. Both sums of all sites are on the host.
  EXPECT_EQ(plan.memory.sums, RidgeSums::Bytes(8192));
  EXPECT_EQ(plan.memory.host_sums, 20 * SiteSums::Bytes(8192));
  EXPECT_EQ(plan.passes, 20);
  job.device_memory = int64_t{1} << 40;
  EXPECT_EQ(PlanOf(job).memory.sums, 20 * RidgeSums::Bytes(8192));
  EXPECT_EQ(PlanOf(job).passes, 1);
}

TEST(MainJob, IsDividedAmongProcesses) {
  MainJob job = JobFor(ShapesOf(kLlama405B));
  job.machine = {.memory = int64_t{1} << 50};
  job.split = 64;
  const JobPlan plan = PlanOf(job);
  EXPECT_EQ(plan.pass, SelectionPass());
  // Two blocks of 3,187,703,808 parameters, and the sums of both.
  EXPECT_EQ(plan.memory.weights, 2 * 2 * 3'187'703'808);
  EXPECT_EQ(plan.memory.sums, 2 * SiteSums::Bytes(16384));
  EXPECT_EQ(SiteSums::Bytes(16384), 2 * 4'295'360'520) << "float64, (16385, 16385) and (16385, 16384)";
  job.split = 128;  // more than blocks and a head
  EXPECT_THROW(PlanOf(job), UsageError);
  job.split = 2;
  job.recipe.correction = "bias";
  EXPECT_THROW(PlanOf(job), UsageError) << "not of a split model";
}

TEST(MainJob, SaysWhatIsNotPlanned) {
  MainJob job = JobFor(ShapesOf(kLlama70B), "taylor:4");
  job.recipe.correction = "auto";
  job.recipe.gate = true;  // the gate is planned
  EXPECT_EQ(PlanOf(job).unplanned.size(), 2);
}

TEST(MainJob, RefusesSizesThatOverflow) {
  EXPECT_EQ(CheckedProduct({3, int64_t{1} << 60}), int64_t{3} << 60);
  EXPECT_THROW(CheckedProduct({8, int64_t{1} << 60}), Error);
}

// Bytes that are allocated.
int64_t Allocated() {
  const auto info = ::mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

TEST(Activations, AreWhatADecoderOfTheCpuTakes) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer has an allocator of its own, which does not count";
#endif
  const TemporaryDirectory directory;
  WriteText(directory.path() / "shape.json", test::ConfigText({2, 256, 640, 4, 2, 512}));
  WriteRandomCheckpoint(directory.path() / "shape.json", DType::kBFloat16, 1, directory.path() / "model");
  const auto weights = LoadWeights(directory.path() / "model");
  const DepthPlan plan = DepthPlan::Original(2);
  const std::vector<int32_t> token = {1}, tokens(1000, 1);
  constexpr int kSequences = 16;  // so many that memory by whole pages of 2 MiB does not count
  Batch batch;
  for (int i = 0; i < kSequences; ++i) batch.Add(tokens);
  Decoder warm(Context(), weights, plan);  // what the kernels keep for each thread
  warm.Forward(batch);
  Decoder decoder(Context(), weights, plan);
  int64_t before = Allocated();
  decoder.Forward(batch);
  const auto taken = static_cast<double>(Allocated() - before);
  EXPECT_NEAR(taken, static_cast<double>(batch.size() * CpuActivationBytesPerToken(weights->config)), 0.04 * taken);

  Decoder single(Context(), weights, plan);
  KvCache small(weights->config, plan, 1), cache(weights->config, plan, 4000);
  single.Forward(token, small);
  before = Allocated();
  single.Forward(token, cache);
  const auto cached = static_cast<double>(Allocated() - before);
  EXPECT_NEAR(cached, 4000.0 * static_cast<double>(KvBytesPerPosition(weights->config, plan, DType::kFloat32)),
              0.02 * cached);
}

}  // namespace
}  // namespace shiftrt

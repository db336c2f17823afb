// SPDX-License-Identifier: Apache-2.0
// Shapes without weights, and the work that follows from them, against figures computed by hand.
#include "estimate/flops.h"

#include <gtest/gtest.h>

#include <cmath>

#include "models/split.h"
#include "tests/estimate/shapes.h"
#include "tests/models/gguf_files.h"

namespace shiftrt {
namespace {

using test::JobFor;
using test::kLlama405B;
using test::kLlama70B;
using test::ShapesOf;

TEST(Shapes, CountWhatNobodyHasLoaded) {
  const ModelShapes large = ShapesOf(kLlama405B);
  const DepthPlan plan = DepthPlan::Original(126);
  // 126 (2 * 16384^2 + 2 * 1024 * 16384 + 3 * 53248 * 16384 + 2 * 16384) + 2 * 128256 * 16384 + 16384
  EXPECT_EQ(plan.Parameters(*large.weights), 405'853'388'800);
  EXPECT_EQ(large.stored, (std::map<std::string, int64_t>{{"bfloat16", 811'706'777'600}}));
  EXPECT_EQ(WeightBytes(large.weights->config, plan, {0, 126}, DType::kBFloat16), 811'706'777'600);
  // All but the embeddings, of which a token reads one row.
  EXPECT_EQ(plan.BytesPerToken(*large.weights), 2 * (405'853'388'800 - 128255 * int64_t{16384}));
  EXPECT_EQ(DepthPlan::Original(80).Parameters(*ShapesOf(kLlama70B).weights), 70'553'706'496);
}

TEST(Shapes, HaveTheTypeThatTheConfigurationNames) {
  EXPECT_EQ(ShapesOf(kLlama70B, "float32").weights->blocks[3].down.dtype, DType::kFloat32);
  EXPECT_EQ(ShapesOf(kLlama70B, "float32").stored.at("float32"), 4 * 70'553'706'496);
  EXPECT_THROW(ShapesOf(kLlama70B, "float8_e4m3fn"), Error);
  const TemporaryDirectory directory;
  WriteText(directory.path() / "config.json", test::ConfigText(kLlama70B));
  EXPECT_EQ(ShapesOfModel(directory.path(), WeightType::kFloat16).weights->head.dtype, DType::kFloat16);
}

TEST(Shapes, AreThoseOfTheFiles) {
  const TemporaryDirectory directory;
  WriteText(directory.path() / "shape.json", test::ConfigText({3, 32, 48, 4, 2, 64}));
  WriteRandomCheckpoint(directory.path() / "shape.json", DType::kFloat32, 1, directory.path() / "model");
  const ModelShapes shapes = ShapesOfModel(directory.path() / "model");  // its config.json says bfloat16
  const auto loaded = LoadWeights(directory.path() / "model");
  const DepthPlan plan = DepthPlan::Original(3);
  EXPECT_EQ(plan.Parameters(*shapes.weights), plan.Parameters(*loaded));
  EXPECT_EQ(plan.BytesPerToken(*shapes.weights), plan.BytesPerToken(*loaded));
  const std::map<std::string, int64_t> stored = {{"float32", 4 * plan.Parameters(*loaded)}};
  EXPECT_EQ(shapes.stored, stored);
  const auto gguf = directory.path() / "model.gguf";
  WriteText(gguf, GgufModel(*loaded));
  const ModelShapes header = ShapesOfModel(gguf, WeightType::kFloat16);
  EXPECT_EQ(header.stored, stored);
  EXPECT_EQ(plan.BytesPerToken(*header.weights), plan.BytesPerToken(*loaded) / 2);
}

using ShapesDeathTest = testing::Test;
TEST(ShapesDeathTest, CannotBeRead) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const ModelShapes shapes = ShapesOf(kLlama70B);
  EXPECT_DEATH(shapes.weights->Fingerprint(), "");
}

TEST(Flops, OfABlockAreThoseOfItsProductsAndItsAttention) {
  const ModelShapes shapes = ShapesOf(kLlama405B);
  // 2 (2 * 16384^2 + 2 * 1024 * 16384 + 3 * 53248 * 16384) per token
  EXPECT_DOUBLE_EQ(BlockFlopsPerToken(*shapes.weights), 126 * 6'375'342'080.0);
  const Sequences text = {4, 512};
  // 4 * 16384 FLOP for each of 512 * 513 / 2 pairs
  EXPECT_DOUBLE_EQ(BlockFlops(*shapes.weights, 7, text), 2048 * 6'375'342'080.0 + 4 * 65536.0 * 131'328);
  EXPECT_DOUBLE_EQ(BlockFlops(*shapes.weights, BlockPart{7, Halves::kMlp}, text), 2048 * 2.0 * 3 * 53248 * 16384);
  EXPECT_DOUBLE_EQ(HeadFlops(shapes.weights->config, 2047), 2.0 * 2047 * 128256 * 16384);
  EXPECT_DOUBLE_EQ(RidgeSumsFlops(16384, 16384, 2048), 2048 * 3.0 * 16384 * 16384);
}

TEST(Flops, OfAWindowCountThePairsThatSeeEachOther) {
  ModelShapes shapes = ShapesOf(kLlama70B);
  auto windowed = std::make_shared<Weights>(*shapes.weights);
  windowed->config.block.windows.assign(80, 3);
  const auto attention = [](const Weights& weights, int64_t length) {
    return BlockFlops(weights, 0, {1, length}) - static_cast<double>(length) * BlockFlopsPerToken(weights) / 80;
  };
  EXPECT_DOUBLE_EQ(attention(*windowed, 2), 4.0 * 8192 * 3);   // 1 + 2
  EXPECT_DOUBLE_EQ(attention(*windowed, 6), 4.0 * 8192 * 15);  // 1 + 2 + 4 * 3
}

TEST(MainJob, IsOutlinedWithoutTextAndWeights) {
  const MainJob job = JobFor(ShapesOf(kLlama405B));
  const JobOutline outline = OutlineOf(job);
  EXPECT_EQ(outline.units, 31);
  EXPECT_TRUE(outline.removed.empty());
  EXPECT_EQ(outline.sites, 31);
  EXPECT_EQ(outline.adapter_parameters, 31 * 129 * 16384);
  EXPECT_EQ(outline.calibration.fit_batches, 56);
  EXPECT_EQ(outline.calibration.heldout_batches, 8);
  EXPECT_EQ(outline.window_batches(), 166);
  EXPECT_TRUE(outline.unplanned.empty());
  const double pass = 126 * (6'375'342'080.0 * 512 + 65536.0 * 131'328);  // FLOP per sample
  EXPECT_DOUBLE_EQ(FlopsOf(job, outline, JobStep::kSelect).all(), 224 * pass);
  const StepFlops calibrate = FlopsOf(job, outline, JobStep::kCalibrate);
  EXPECT_DOUBLE_EQ(calibrate.model, 256 * pass);
  EXPECT_DOUBLE_EQ(calibrate.sums, 31 * 131072.0 * 3 * 16384 * 16384);
  // An eigendecomposition and two products of a Gram.
  EXPECT_DOUBLE_EQ(FlopsOf(job, outline, JobStep::kSolve).fits, 31 * 13.0 * 16384 * 16384 * 16384);
}

TEST(MainJob, KnowsWhatIsRemovedWhereNoDataDecides) {
  const ModelShapes shapes = ShapesOf(kLlama70B);
  EXPECT_EQ(Names(OutlineOf(JobFor(shapes, "reverse*:3")).removed), "76, 77, 78");
  const MainJob named = JobFor(shapes, "layers=3.attn,40-42");
  EXPECT_EQ(Names(OutlineOf(named).removed), "3.attn, 40, 41, 42");
  // A pass that collects sums ends after the last of them.
  EXPECT_DOUBLE_EQ(FlopsOf(named, OutlineOf(named), JobStep::kCalibrate).model,
                   43 * BlockFlops(*shapes.weights, 0, {256, 512}));
  EXPECT_TRUE(OutlineOf(JobFor(shapes, "magnitude-l1:3")).removed.empty());
  EXPECT_FALSE(OutlineOf(JobFor(shapes, "magnitude-l1:3")).selects);
  EXPECT_EQ(OutlineOf(JobFor(shapes, "bi:0.25,unit=half")).units, 40);
  EXPECT_EQ(OutlineOf(JobFor(shapes, "bi:params=55B")).units, 19);
  EXPECT_THROW(OutlineOf(JobFor(shapes, "bi:80")), UsageError);
  EXPECT_EQ(OutlineOf(JobFor(shapes, "bi:max-kl=0.2")).units, 40) << "half of the layers at most";
  EXPECT_EQ(OutlineOf(JobFor(shapes, "bi:max-kl=0.2")).unplanned,
            std::vector<std::string>{"the search for the largest cut"});
}

// A sequential fit: both streams, the fits of projections, healing, and the losses that decide about it.
TEST(MainJob, CountsRefitsHealingAndTheLossesOfHeldOutText) {
  MainJob job = JobFor(ShapesOf(kLlama70B), "layers=40-44");
  job.recipe.correction = "refit";
  JobOutline outline = OutlineOf(job);
  EXPECT_EQ(outline.sequential_inputs, std::vector<int64_t>{28672});
  EXPECT_EQ(outline.sequential_rows, 39 + 2 * 6 - 5 + 1);
  EXPECT_EQ(outline.widest(8192), 28672);
  EXPECT_TRUE(outline.unplanned.empty());
  const StepFlops refit = FlopsOf(job, outline, JobStep::kCalibrate);
  EXPECT_DOUBLE_EQ(refit.model, 47 * BlockFlops(*job.weights, 0, {256, 512}));
  EXPECT_DOUBLE_EQ(refit.sums, RidgeSumsFlops(28672, 8192, 256 * 512));
  EXPECT_DOUBLE_EQ(FlopsOf(job, outline, JobStep::kSolve).fits, SolveFlops(job.recipe.lambda, 28672, 8192));

  // The adapter on the norm of what the projection leaves is a fit of its own.
  job.recipe.correction = "norm-refit";
  EXPECT_EQ(OutlineOf(job).sequential_inputs, (std::vector<int64_t>{28672, 8192}));
  EXPECT_EQ(OutlineOf(job).sequential_rows, outline.sequential_rows + 1);
  job.recipe.correction = "refit";

  job.recipe.heal = Heal::kAll;
  job.recipe.benefit = Benefit::kRequired;
  outline = OutlineOf(job);
  EXPECT_EQ(outline.sequential_inputs.size(), size_t{1 + 2 * 35});
  EXPECT_EQ(outline.loss_tokens, 2 * 16384 + 3 * 8192);
  EXPECT_GT(FlopsOf(job, outline, JobStep::kSolve).fits, 35 * SolveFlops(job.recipe.lambda, 28672, 8192));

  job.recover_tokens = 1000;
  EXPECT_GT(FlopsOf(job, outline, JobStep::kRecover).model, 3 * 1000 * BlockFlopsPerToken(*job.weights) * 75 / 80);
  job.recipe.prune = ParsePrune("bi:0.25");  // where it is unknown what is removed, every block may be its own run
  EXPECT_EQ(OutlineOf(job).sequential_inputs.size(), size_t{20 + (60 - 19) + 60});
}

// A fit of many inputs and few outputs takes no eigenvectors on the host.
TEST(MainJob, CountsATridiagonalFormWhereTheSolverTakesOne) {
  const double cube = std::pow(10496.0, 3), product = 2.0 * 10496 * 10496 * 1536;
  EXPECT_DOUBLE_EQ(SolveFlops(ParseLambda("gcv"), 10496, 1536), (4.0 / 3 + 1.0 / 3) * cube + 2 * product);
  EXPECT_DOUBLE_EQ(SolveFlops(ParseLambda("gcv"), 1536, 1536), EigenFlops(1536) + 2 * (2.0 * 1536 * 1536 * 1536));
}

TEST(MainJob, CountsTheSumsThatASelectionCollects) {
  MainJob job = JobFor(ShapesOf(kLlama70B));
  job.machine.memory = 100 * RidgeSums::Bytes(8192);  // sums of 80 candidates, and of the held-out text of 20 sites
  const JobOutline outline = OutlineOf(job);
  EXPECT_EQ(outline.pass.candidates, 80);
  const double sums = 512 * 3.0 * 8192 * 8192;  // FLOP per sample
  const double pass = FlopsOf(job, OutlineOf(JobFor(ShapesOf(kLlama70B))), JobStep::kSelect).all();
  EXPECT_DOUBLE_EQ(FlopsOf(job, outline, JobStep::kSelect).model, pass);
  EXPECT_DOUBLE_EQ(FlopsOf(job, outline, JobStep::kSelect).sums, 80 * 224 * sums);
  EXPECT_DOUBLE_EQ(FlopsOf(job, outline, JobStep::kCalibrate).model, pass * 32 / 224);
  EXPECT_DOUBLE_EQ(FlopsOf(job, outline, JobStep::kCalibrate).sums, 20 * 32 * sums);
  --job.machine.memory;
  EXPECT_EQ(OutlineOf(job).pass.candidates, 0);
}

TEST(MainJob, HasLongerBatchesAndKeepsStreamsOnAGpu) {
  MainJob job = JobFor(ShapesOf(kLlama70B));
  EXPECT_EQ(OutlineOf(job).calibration_batch(), 2048);
  job.machine = {.memory = int64_t{1} << 40, .gpu = true};
  const JobOutline outline = OutlineOf(job);
  EXPECT_EQ(outline.calibration.fit_batches, 28);
  EXPECT_EQ(outline.calibration_batch(), 4096);
  EXPECT_EQ(outline.pass, (SelectionPass{0, 0, {15, 45}}));
}

TEST(MainJob, SaysWhatIsNotPlanned) {
  MainJob job = JobFor(ShapesOf(kLlama70B), "taylor:4");
  job.recipe.correction = "auto";
  job.recipe.gate = true;  // the gate is planned
  EXPECT_EQ(OutlineOf(job).unplanned.size(), 2);
}

TEST(MainJob, RefusesSizesThatOverflow) {
  EXPECT_EQ(CheckedProduct({3, int64_t{1} << 60}), int64_t{3} << 60);
  EXPECT_THROW(CheckedProduct({8, int64_t{1} << 60}), Error);
}

}  // namespace
}  // namespace shiftrt

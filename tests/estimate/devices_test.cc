// SPDX-License-Identifier: Apache-2.0
// Memory and time of devices: shapes that nobody here can load, and small ones against what a decoder takes.
#include "estimate/devices.h"

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

class Planned {
 public:
  Planned(const test::Sides& sides, const char* hardware, const std::string& prune = "bi:0.25")
      : job_(JobFor(ShapesOf(sides), prune)),
        outline_(OutlineOf(job_)),
        hardware_(FindHardware(hardware)),
        planner_(job_, outline_, hardware_) {}
  const DevicePlanner* operator->() const { return &planner_; }

 private:
  MainJob job_;
  JobOutline outline_;
  const Hardware& hardware_;
  DevicePlanner planner_;
};

double SecondsOf(const DevicePlan& plan, JobStep step) { return plan.seconds[static_cast<size_t>(step)]; }

TEST(Devices, HoldAShareOfALargeModel) {
  const Planned planned(kLlama405B, "h100");
  const DevicePlan plan = planned->On(64, 64);
  EXPECT_EQ(plan.why_not, "");
  // Two blocks of 3,187,703,808 parameters.
  EXPECT_EQ(plan.memory.weights, 2 * 2 * 3'187'703'808);
  // float64, (16385, 16385) and (16385, 16384), of both blocks' sites
  EXPECT_EQ(plan.memory.sums, 2 * 4'295'360'520);
  EXPECT_EQ(plan.host_sums, 4 * 4'295'360'520);
  EXPECT_EQ(plan.stream_bytes, 65536);
  EXPECT_EQ(plan.passes, 1);
  // 112 and 16 batches of 2048 tokens through all blocks, at the peak.
  const double batch = 126 * (2 * 2048 * 3'187'671'040.0 + 4 * 4 * 16384.0 * 131'328);
  EXPECT_NEAR(SecondsOf(plan, JobStep::kSelect), 56 * batch / 989.5e12 / 64, 1e-9);
  const double sums = 31 * 64 * 2048 * 3.0 * 16384 * 16384;
  EXPECT_NEAR(SecondsOf(plan, JobStep::kCalibrate), (64 * batch / 989.5e12 + sums / 67e12) / 64, 1e-9);
  EXPECT_NEAR(SecondsOf(plan, JobStep::kSolve), 13 * std::pow(16384.0, 3) / 67e12, 1e-9);
}

TEST(Devices, SayWhatDoesNotFit) {
  const Planned large(kLlama405B, "h100");
  for (const int64_t devices : {1, 2, 4, 8}) EXPECT_NE(large->On(devices).why_not, "") << devices;
  EXPECT_NE(large->On(128, 128).why_not, "");  // more than blocks and a head
  EXPECT_NE(large->On(64, 3).why_not, "");
  EXPECT_EQ(Planned(kLlama405B, "h200")->On(8).why_not, "");
  const Planned planned(kLlama70B, "h100");
  EXPECT_NE(planned->On(1).why_not, "");
  EXPECT_EQ(planned->On(4).why_not, "");
  for (const int64_t devices : {4, 8, 16, 32, 64}) EXPECT_LE(planned->On(devices).memory.most(), 80'000'000'000);
}

TEST(Devices, ShareTheBatchesWhereTheModelFits) {
  const Planned planned(kLlama70B, "epyc-9654");
  const DevicePlan one = planned->On(1), eight = planned->On(8, 1);
  EXPECT_EQ(one.stages, 1);
  EXPECT_EQ(eight.memory.weights, 2 * 70'553'706'496);
  // Sums of fitted and of held-out tokens for 20 sites.
  EXPECT_EQ(one.memory.sums, 20 * 2 * 8 * int64_t{8193} * 16385);
  EXPECT_EQ(one.memory.rows, 0);
  EXPECT_EQ(eight.memory.rows, int64_t{20} * (2048 * (24 + 4 * 16384) + 32));
  EXPECT_NEAR(SecondsOf(eight, JobStep::kSelect), SecondsOf(one, JobStep::kSelect) / 8, 1e-9);
  EXPECT_NEAR(SecondsOf(eight, JobStep::kSolve), SecondsOf(one, JobStep::kSolve) / 8, 1e-9);
  EXPECT_EQ(one.sent, 0);
  // The rows of 56 and 8 batches go to the owners of 20 sites, but for the eighth that is the owner's.
  EXPECT_GT(eight.sent, 64 * 20 * 7.0 / 8 * 2048 * 65536);
}

TEST(Devices, HaveRoomForWhatASelectionCollectsOrKeeps) {
  constexpr test::Sides kLlama8B = {32, 4096, 14336, 32, 8, 128256};
  MainJob job = JobFor(ShapesOf(kLlama8B));
  job.machine.memory = int64_t{1} << 37;
  const JobOutline on_cpu = OutlineOf(job);
  const DevicePlanner cpus(job, on_cpu, FindHardware("epyc-9654"));
  EXPECT_EQ(cpus.On(1).memory.sums, (32 + 8) * RidgeSums::Bytes(4096));
  EXPECT_EQ(cpus.On(1).memory.streams, 0);
  EXPECT_EQ(cpus.On(2, 1).memory.sums, 8 * SiteSums::Bytes(4096)) << "several processes take two passes";
  EXPECT_LT(SecondsOf(cpus.On(2, 1), JobStep::kSelect), SecondsOf(cpus.On(1), JobStep::kSelect) / 2)
      << "without the sums";
  job.machine.gpu = true;
  const JobOutline on_gpu = OutlineOf(job);
  const DevicePlanner gpus(job, on_gpu, FindHardware("h200"));
  const DevicePlan one = gpus.On(1), two = gpus.On(2, 1);
  EXPECT_EQ(one.memory.streams, 2 * int64_t{114'688} * 4096 * 4);
  EXPECT_EQ(two.memory.streams, 0);
  EXPECT_EQ(one.memory.activations, two.memory.activations);
}

TEST(Devices, DividePlacesForWhichMemoryHasNoRoom) {
  MainJob job = JobFor(ShapesOf(kLlama70B));
  job.memory = 5 * SiteSums::Bytes(8192) + 1;
  const JobOutline outline = OutlineOf(job);
  const Hardware& cpu = FindHardware("epyc-9654");
  const DevicePlan plan = DevicePlanner(job, outline, cpu).On(1);
  EXPECT_EQ(plan.passes, 4);  // in groups of five sites
  EXPECT_EQ(plan.memory.sums, 5 * SiteSums::Bytes(8192));
}

TEST(Devices, KnowWhichOfThemHaveThePlacesThatAreKnown) {
  // Four of the last blocks, which are on the last of eight devices.
  const DevicePlan known = Planned(kLlama70B, "h100", "reverse*:4")->On(8, 8);
  EXPECT_EQ(known.host_sums, 4 * SiteSums::Bytes(8192));
}

TEST(Devices, AreGroupedByTheSmallestSplitForWhichThereIsRoom) {
  const Planned planned(kLlama70B, "h100");
  const DevicePlan best = planned->On(64);
  EXPECT_EQ(best.why_not, "");
  for (int64_t stages = 1; stages < best.stages; stages *= 2) EXPECT_NE(planned->On(64, stages).why_not, "") << stages;
  const DevicePlan grouped = planned->On(16, 4), alone = planned->On(4, 4);
  EXPECT_NEAR(SecondsOf(grouped, JobStep::kSelect), SecondsOf(alone, JobStep::kSelect) / 4, 1e-9);
  // Each place of a stage is added up in one of the groups.
  EXPECT_EQ(alone.host_sums, 20 * SiteSums::Bytes(8192));
  EXPECT_EQ(grouped.host_sums, 5 * SiteSums::Bytes(8192));
}

TEST(Devices, AreNotGroupedWhereASplitModelCannotDoTheJob) {
  MainJob job = JobFor(ShapesOf(kLlama70B));
  job.recipe.correction = "bias";
  const JobOutline outline = OutlineOf(job);
  const Hardware& h100 = FindHardware("h100");
  const DevicePlanner planner(job, outline, h100);
  EXPECT_EQ(planner.On(4).stages, 1);
  EXPECT_NE(planner.On(4).why_not, "");
  EXPECT_EQ(planner.On(4, 4).why_not, outline.no_split);
}

TEST(Hardware, IsFoundByName) {
  EXPECT_EQ(FindHardware("a100").memory, 80'000'000'000);
  EXPECT_THROW(FindHardware("v100"), UsageError);
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

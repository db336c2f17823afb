// SPDX-License-Identifier: Apache-2.0
// Tests several GPUs: calibration sums collected on them in turn are compared with those of one. The tests run on the
// emulator, which has any number of devices, and on the GPUs of this machine if there is more than one.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/collector.h"
#include "runtime/check.h"
#include "runtime/cuda/communicator.h"
#include "runtime/random.h"
#include "shift/sums/collect.h"
#include "tests/cuda/fixture.h"
#include "tests/cuda/models.h"
#include "tests/cuda/sums.h"
#include "tests/engine/rows.h"
#include "tests/runtime/thread_link.h"
#ifdef SHIFTRT_EMULATED
#include "kernels/emulated/device.h"
#include "kernels/emulated/machine.h"
#endif

namespace shiftrt {
namespace {

class ManyGpus : public testing::Test {
 protected:
  void SetUp() override {
    if (!gpu::WhyUnavailable().empty()) GTEST_SKIP() << gpu::WhyUnavailable();
    if (!gpu::WhyNoCommunicator().empty()) GTEST_SKIP() << gpu::WhyNoCommunicator();
    if (gpu::DeviceCount() < 2) GTEST_SKIP() << "one GPU";
    gpu::worst_share = 0;
  }
  void TearDown() override {
    if (gpu::worst_share > 0) RecordProperty("worst_error_over_tolerance", std::to_string(gpu::worst_share));
  }
  // 0 .. count - 1.
  static std::vector<int> First(int count) {
    std::vector<int> gpus(count);
    for (int i = 0; i < count; ++i) gpus[i] = i;
    return gpus;
  }

 private:
#ifdef SHIFTRT_EMULATED
  emu::Devices devices_{3};
#endif
};

class CommunicatorOnGpu : public ManyGpus {};

TEST_F(CommunicatorOnGpu, TheFirstHoldsTheSumOfAll) {
  const int devices = gpu::DeviceCount();
  for (const int64_t count : {1, 7, 100'003}) {
    std::vector<std::unique_ptr<gpu::StreamOwner>> owners;
    std::vector<gpu::Stream> streams;
    std::vector<gpu::DeviceBuffer<double>> there;
    std::vector<std::vector<double>> host;
    std::vector<double*> arrays;
    for (int device = 0; device < devices; ++device) {
      streams.push_back(owners.emplace_back(std::make_unique<gpu::StreamOwner>(device))->get());
      Random random(device + 1);
      std::vector<double>& values = host.emplace_back(count);
      for (double& x : values) x = random.Normal();
      there.emplace_back(streams.back(), std::span<const double>(values), "a test");
      arrays.push_back(there.back().data());
    }
    gpu::Communicator communicator(streams);
    for (int round = 1; round <= 2; ++round) {
      communicator.SumToFirst(arrays, count);
      std::vector<std::vector<double>> now;
      for (int device = 0; device < devices; ++device)
        now.push_back(gpu::Output<double>::Fetch(streams[device], there[device]));
      for (int64_t i = 0; i < count; ++i) {
        double sum = host[0][i], size = std::abs(host[0][i]);
        for (int device = 1; device < devices; ++device) {
          ASSERT_EQ(now[device][i], host[device][i]);
          sum += round * host[device][i];
          size += round * std::abs(host[device][i]);
        }
        ASSERT_TRUE(test::Close(now[0][i], sum, 2 * devices * 0x1p-53 * size, i));
      }
    }
  }
}

void ExpectClose(const CalibrationSums& found, const CalibrationSums& expected, double tolerance) {
  EXPECT_EQ(found.fit_batches, expected.fit_batches);
  EXPECT_EQ(found.heldout_batches, expected.heldout_batches);
  for (size_t i = 0; i < expected.sites.size(); ++i) {
    SCOPED_TRACE("site " + expected.sites[i].site.Name());
    ExpectClose(found.sites[i].fit, expected.sites[i].fit, tolerance);
    ExpectClose(found.sites[i].heldout, expected.sites[i].heldout, tolerance);
  }
}

// Tolerances for sums of the same float32 rows added in another order, and for sums of rows that differ by the rounding
// of the devices.
constexpr double kOneGpu = 1e-12, kCpu = 1e-5;

class SeveralGpus : public ManyGpus {
 protected:
  void SetUp() override {
    ManyGpus::SetUp();
    if (IsSkipped()) return;
    model_.weights = MakeWeights({.heads = 1}, DType::kFloat32);
    Random random(3);
    for (int i = 0; i < 7; ++i) {
      Batch batch;
      for (const int length : {3 + i, 2}) {
        std::vector<int32_t> tokens(length);
        for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(model_.weights->config.vocab));
        batch.Add(tokens);
      }
      (i >= 5 ? calibration_.heldout : calibration_.fit).push_back(batch);
    }
  }

  // A block, a span and a map of the MLP output, with three kinds of token weights.
  CalibrationSums Empty() const {
    const int64_t hidden = model_.weights->config.hidden;
    CalibrationSums sums;
    sums.sites.emplace_back(Site{0}, hidden);
    sums.sites.emplace_back(Site{0, 2}, hidden).weighting = ParseTokenWeights("norm,first:0.25");
    sums.sites.emplace_back(Site{1}, hidden, SiteInput::kMlpBefore).weighting = ParseTokenWeights("massive:0.5");
    return sums;
  }
  void CollectInto(const Context& context, CalibrationSums& sums) {
    Collect({context, model_, calibration_, quiet_}, sums);
  }
  CalibrationSums Collected(const Context& context) {
    CalibrationSums sums = Empty();
    CollectInto(context, sums);
    return sums;
  }
  static Context OnGpus(int count) { return On(Device::kCuda, First(count)); }
  static int Most() { return std::min(gpu::DeviceCount(), 3); }

  Model model_;
  CalibrationSet calibration_;
  NoProgress quiet_;
};

TEST_F(SeveralGpus, SumsAreThoseOfOneAndOfTheCpu) {
  const CalibrationSums one = Collected(OnGpus(1)), cpu = Collected(On(Device::kCpu));
  EXPECT_EQ(one.sites[0].fit.tokens(), 5 + 6 + 7 + 8 + 9);
  for (int count = 2; count <= Most(); ++count) {
    const CalibrationSums found = Collected(OnGpus(count));
    ExpectClose(found, one, kOneGpu);
    ExpectClose(found, cpu, kCpu);
  }
  ExpectClose(Collected(On(Device::kCuda, {1, 0})), one, kOneGpu);
}

TEST_F(SeveralGpus, SomeMayGetNoBatch) {
  calibration_.fit.resize(1);
  calibration_.heldout.resize(1);
  const CalibrationSums one = Collected(OnGpus(1));
  ExpectClose(Collected(OnGpus(Most())), one, 0);
}

TEST_F(SeveralGpus, SumsThatAreSavedAfterEveryBatchCountNothingTwice) {
  class EveryBatch : public PassCheckpoint {
   public:
    explicit EveryBatch(const CalibrationSums& sums) : sums_(sums) {}
    bool Due() override { return true; }
    void Save() override { tokens.push_back(sums_.sites[1].fit.tokens() + sums_.sites[1].heldout.tokens()); }
    std::vector<int64_t> tokens;

   private:
    const CalibrationSums& sums_;
  };
  CalibrationSums sums = Empty();
  EveryBatch every_batch(sums);
  Collect({OnGpus(2), model_, calibration_, quiet_}, sums, &every_batch);
  EXPECT_EQ(every_batch.tokens, (std::vector<int64_t>{5, 11, 18, 26, 35, 45, 56}));
  ExpectClose(sums, Collected(OnGpus(1)), kOneGpu);
}

TEST_F(SeveralGpus, AnInterruptedCollectionGoesOn) {
  class Impatient : public NoProgress {
   public:
    void Advance(int64_t) override {
      if (++batches == 3) throw Interrupted();
    }
    int batches = 0;
  } impatient;
  CalibrationSums sums = Empty();
  EXPECT_THROW(Collect({OnGpus(2), model_, calibration_, impatient}, sums), Interrupted);
  EXPECT_EQ(sums.fit_batches, 3);
  EXPECT_EQ(sums.sites[0].fit.tokens(), 5 + 6 + 7);
  CollectInto(OnGpus(Most()), sums);
  ExpectClose(sums, Collected(OnGpus(1)), kOneGpu);
}

TEST_F(SeveralGpus, EachHasItsOwnCopyOfTheWeights) {
  Batch batch;
  batch.Add(std::vector<int32_t>{1, 2, 3});
  std::vector<std::shared_ptr<const RowsDevice>> devices;
  for (const int64_t which : {0, 1, 0}) {
    Decoder decoder(OnGpus(2).WithGpu(which), model_.weights, DepthPlan::Original(2));
    devices.push_back(decoder.Forward(batch).device());
    EXPECT_EQ(devices.back()->gpu(), which);
  }
  EXPECT_NE(devices[0], devices[1]);
  EXPECT_EQ(devices[0], devices[2]);
}

TEST_F(SeveralGpus, RowsStayWithTheGpuThatHasThem) {
  const std::unique_ptr<Collector> both = MakeCollector(OnGpus(2), model_.weights);
  const int64_t hidden = model_.weights->config.hidden;
  Matrix<float> values = Matrix<float>::Zeros(2, hidden);
  values(1, 3) = 5;
  const Context second_gpu = On(Device::kCuda, {1});
  const KeptRows on_first = Uploaded(OnGpus(1), model_.weights, values.view()),
                 on_second = Uploaded(second_gpu, model_.weights, values.view());
  KeptRows kept;
  kept.Set(on_first.rows());
  EXPECT_EQ(kept.rows().gpu(), 0);
  kept.Set(on_second.rows());
  EXPECT_EQ(kept.rows().gpu(), 1);
  EXPECT_EQ(test::Copied(kept.rows())(1, 3), 5);
  EXPECT_THROW(kept.Add(on_first.rows()), Error);
  Decoder decoder(second_gpu, model_.weights, DepthPlan::Original(0));
  EXPECT_THROW(decoder.Logits(on_first.rows()), Error);
  const std::unique_ptr<PendingProducts> products = both->MakeProducts();
  for (const Rows& rows : {on_first.rows(), on_second.rows()}) {
    products->Start(rows, rows);
    EXPECT_EQ(products->Take().at(1).aa, 25);
  }
  EXPECT_TRUE(products->Take().empty());
  EXPECT_THROW(products->Start(on_first.rows(), on_second.rows()), Error);
  RidgeSums sums(hidden);
  EXPECT_THROW(both->MakeRidgeSums(sums.matrices())->Add(on_first.rows(), on_second.rows(), {}), Error);
}

#ifdef SHIFTRT_EMULATED

// The host gives a device its next batch without waiting for the work of any device. It waits once per device for the
// memory of a site's sums and once before it is freed.
TEST_F(SeveralGpus, NobodyWaitsBetweenBatches) {
  Collected(OnGpus(2));  // uploads the weights
  CalibrationSums sums = CalibrationSums::Empty({0, 1}, model_.weights->config.hidden);
  const int64_t before = emu::Drains();
  CollectInto(OnGpus(2), sums);
  const int64_t sites = 2, halves = 2, gpus = 2;
  EXPECT_EQ(emu::Drains() - before, sites * halves * 2 * gpus);
}

TEST_F(SeveralGpus, TooLittleMemoryMakesGroups) {
  class Phases : public NoProgress {
   public:
    void Begin(std::string_view phase, int64_t) override { groups += phase.find("sites") != std::string_view::npos; }
    int groups = 0;
  } phases;
  CalibrationSums expected = Collected(OnGpus(1));
  for (SiteSums& site : expected.sites)
    for (RidgeSums* sums : {&site.fit, &site.heldout}) sums->ToHost();
  Collected(OnGpus(3));
  const int64_t hidden = model_.weights->config.hidden;
  const int64_t weights = emu::AllocatedBytes(2), batch = 64 * 1024;
  const emu::MemoryLimit limit(weights + batch + 2 * RidgeSums::Bytes(hidden));  // room for two of the three sites
  CalibrationSums sums = Empty();
  Collect({OnGpus(3), model_, calibration_, phases}, sums);
  EXPECT_GT(phases.groups, 1);
  ExpectClose(sums, expected, kOneGpu);
}

// Accesses to another device's memory, which fail or are slow on a real device.
TEST_F(SeveralGpus, MemoryOfAnotherDeviceIsFoundOut) {
  const gpu::StreamOwner first(0), second(1);
  const gpu::DeviceBuffer<double> here(first.get(), 4, "a test"), there(second.get(), 4, "a test");
  double host[4] = {1, 2, 3, 4};
  gpu::CopyToDevice(second.get(), there.data(), host, sizeof(host));
  EXPECT_THROW(gpu::CopyToDevice(second.get(), here.data(), host, sizeof(host)), emu::KernelError);
  EXPECT_THROW(gpu::CopyToHost(first.get(), host, there.data() + 1, 8), emu::KernelError);
  EXPECT_THROW(gpu::CopyOnDevice(first.get(), here.data(), there.data(), sizeof(host)), emu::KernelError);
  EXPECT_THROW(gpu::FillBytes(first.get(), there.data() + 3, 0, 8), emu::KernelError);
  double* const swapped[] = {there.data(), here.data()};
  EXPECT_THROW(gpu::Communicator({first.get(), second.get()}).SumToFirst(swapped, 4), emu::KernelError);
  EXPECT_THROW(gpu::Communicator({first.get(), first.get()}), Error);
  EXPECT_THROW(gpu::StreamOwner(3), Error);
}

#endif

#ifndef SHIFTRT_EMULATED  // emulated devices are for one thread; tests/emulated/processes_test.cc has processes

// Threads stand for processes, each with a GPU of its own.
class PeersOnGpu : public SeveralGpus {};

TEST_F(PeersOnGpu, RowsArriveAsTheyWereSent) {
  InProcesses(Most(), [](const std::shared_ptr<Processes>& processes) {
    const int rank = processes->rank(), size = processes->size();
    constexpr int64_t kCount = 100'003;
    const gpu::StreamOwner owner(rank);
    gpu::PeerCommunicator peers(rank, *processes);
    const std::vector<float> values(kCount, static_cast<float>(rank));
    const gpu::DeviceBuffer<float> own(owner.get(), std::span<const float>(values), "a test");
    std::vector<gpu::DeviceBuffer<float>> theirs;
    std::vector<gpu::Transfer> sent, received;
    for (int other = 0; other < size; ++other) {
      if (other == rank) continue;
      sent.push_back({other, own.data(), kCount});
      received.push_back({other, theirs.emplace_back(owner.get(), kCount, "a test").data(), kCount});
    }
    peers.Exchange(owner.get(), sent, received);
    for (size_t i = 0; i < received.size(); ++i) {
      const auto from = static_cast<float>(received[i].rank);
      EXPECT_EQ(gpu::Output<float>::Fetch(owner.get(), theirs[i]), std::vector<float>(kCount, from));
    }
  });
}

TEST_F(PeersOnGpu, SumsAreTheBitsOfOneGpu) {
  const CalibrationSums one = Collected(OnGpus(1));
  for (int count = 2; count <= Most(); ++count)
    InProcesses(count, [&](const std::shared_ptr<Processes>& processes) {
      Context context = On(Device::kCuda, {processes->rank()});
      context.device_copies = MakeDeviceCopies();
      context.processes = processes;
      ExpectClose(Collected(context), one, 0);
    });
}

#endif

}  // namespace
}  // namespace shiftrt

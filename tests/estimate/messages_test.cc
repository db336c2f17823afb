// SPDX-License-Identifier: Apache-2.0
// Bytes between processes as computed, against what processes have sent.
#include "estimate/messages.h"

#include <gtest/gtest.h>

#include <mutex>

#include "shift/criteria/criteria.h"
#include "shift/sums/collect.h"
#include "tests/runtime/thread_link.h"
#include "tests/shift/small_model.h"

namespace shiftrt {
namespace {

// work(processes) in so many processes; what each has sent meanwhile.
std::vector<int64_t> Sent(int size, const std::function<void(const std::shared_ptr<Processes>&)>& work) {
  std::vector<int64_t> sent(size);
  InProcesses(size, [&](const std::shared_ptr<Processes>& processes) {
    const int64_t before = processes->work.sent;
    work(processes);
    sent[processes->rank()] = processes->work.sent - before;
  });
  return sent;
}

TEST(Messages, OfCollectivesAreThoseThatProcessesSend) {
  for (const int size : {1, 2, 3, 8, 21}) {
    const auto payload = [](int rank) { return int64_t{100} + 7 * rank; };
    const std::vector<int64_t> gathered =
        Sent(size, [&](const std::shared_ptr<Processes>& p) { p->Gather(Bytes(payload(p->rank()))); });
    const std::vector<int64_t> told = Sent(size, [&](const std::shared_ptr<Processes>& p) {
      p->Broadcast(size / 2, Bytes(p->rank() == size / 2 ? 50 : 0));
    });
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(GatherBytes({rank, size}, payload), gathered[rank]) << rank << " of " << size;
      EXPECT_EQ(BroadcastBytes({rank, size}, size / 2, 50), told[rank]) << rank << " of " << size;
    }
  }
}

class MessagesOfPasses : public test::SmallModel {
 protected:
  MessagesOfPasses() { calibration_ = MakeCalibration(4, 21); }  // 19 and 2 batches: rounds that are not full

  static std::vector<BatchShape> ShapesOf(const std::vector<Batch>& batches) {
    std::vector<BatchShape> shapes;
    for (const Batch& batch : batches) shapes.push_back({batch.size(), batch.sequences()});
    return shapes;
  }
  std::vector<int64_t> SentBy(int size, const std::function<void(const ShiftJob&)>& work) {
    return Sent(size, [&](const std::shared_ptr<Processes>& processes) {
      Context context = context_;
      context.processes = processes;
      NoProgress quiet;
      work({context, model_, calibration_, quiet});
    });
  }
};

TEST_F(MessagesOfPasses, AreThoseThatProcessesSend) {
  const std::vector<BatchShape> fit = ShapesOf(calibration_.fit), heldout = ShapesOf(calibration_.heldout);
  for (const int size : {2, 3, 8}) {
    const std::vector<int64_t> collected = SentBy(size, [](const ShiftJob& job) {
      CalibrationSums sums = CalibrationSums::Empty({1, 2, 4}, kWidth);
      Collect(job, sums);
    });
    const std::vector<int64_t> selected = SentBy(size, [](const ShiftJob& job) {
      SelectLayers(ParsePrune("bi:2"), {job.context, job.model.weights, &job.calibration.fit}, job.progress);
    });
    for (int rank = 0; rank < size; ++rank) {
      const Place place = {rank, size};
      EXPECT_EQ(CollectBytes(place, {fit, 3, kWidth}) + CollectBytes(place, {heldout, 3, kWidth, false, 3}),
                collected[rank])
          << rank << " of " << size;
      EXPECT_EQ(InfluenceBytes(place, fit, kLayers), selected[rank]) << rank << " of " << size;
    }
  }
}

// The whole method, from which the texts of reports alone are missing.
TEST_F(MessagesOfPasses, OfTheMainJobAreThoseOfRun) {
  MainJob job;
  job.weights = model_.weights;
  job.recipe.prune = ParsePrune("bi:3");
  job.recipe.rank = RankSpec::Fixed(4);
  job.window = 64;
  job.text_tokens = 0;  // the method alone
  for (const Calibration mode : {Calibration::kIndependent, Calibration::kDrift}) {
    job.recipe.mode = mode;
    JobOutline outline = OutlineOf(job);
    outline.calibration = {19, 2, 19, 2, 1};
    outline.fit = {19, 32};
    outline.heldout = {2, 32};
    for (const int size : {2, 3, 8}) {
      const std::vector<int64_t> sent = SentBy(size, [&](const ShiftJob& method) {
        method.context.processes->Split(1);  // as commands do
        Shift(method, job.recipe);
      });
      for (int rank = 0; rank < size; ++rank) {
        const auto computed = static_cast<double>(MainJobBytes({rank, size}, job, outline));
        EXPECT_NEAR(computed, static_cast<double>(sent[rank]), 1000 + 0.01 * computed)
            << Name(mode) << ", " << rank << " of " << size;
      }
    }
  }
}

}  // namespace
}  // namespace shiftrt

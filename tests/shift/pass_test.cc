// SPDX-License-Identifier: Apache-2.0
// What a pass promises its probes: order, groups, checkpoints, interruption.
#include "shift/sums/pass.h"

#include <map>
#include <string>

#include "runtime/check.h"
#include "shift/sums/streams.h"
#include "tests/shift/small_model.h"

namespace shiftrt {
namespace {

// Writes down what happens to it; has `parts` parts, of which a device has memory for `room` at once.
class Recorder : public Probe {
 public:
  Recorder(std::string name, std::vector<std::string>& log, int64_t parts = 1, int64_t room = 100)
      : name_(std::move(name)), log_(log), parts_(parts), room_(room) {}
  int64_t parts() const override { return parts_; }
  void Begin(Collector&, int64_t begin, int64_t end) override {
    incomplete_ = 0;
    Log(fmt::format("begin {}-{}", begin, end));
    if (end - begin > room_) throw OutOfMemory("a part", 1, 0, 0);
  }
  std::vector<Tap> Taps() override {
    return {{1, TapPoint::kInput, [this](const Rows& rows, const Batch& batch) {
               EXPECT_EQ(rows.count(), batch.size());
               ++incomplete_;
               Log("receives " + std::to_string(batch.tokens[0]));
             }}};
  }
  void Complete(int64_t batches) override {
    EXPECT_EQ(batches, incomplete_);
    incomplete_ = 0;
    Log("completes " + std::to_string(batches));
  }
  void End() override { Log("ends"); }

 private:
  void Log(const std::string& what) { log_.push_back(name_ + " " + what); }

  std::string name_;
  std::vector<std::string>& log_;
  int64_t parts_, room_, incomplete_ = 0;
};

using Log = std::vector<std::string>;

class PassTest : public test::SmallModel {
 protected:
  PassTest() {
    for (int32_t first : {7, 8, 9}) {
      Batch batch;
      batch.Add(std::vector<int32_t>{first, 1, 2});
      text_.push_back(std::move(batch));
    }
  }
  std::vector<Batch> text_;
  Log log_;
  NoProgress quiet_;
};

// Keeps what it receives of the input of a block.
class Listener : public Probe {
 public:
  explicit Listener(int64_t layer) : layer_(layer) {}
  void Begin(Collector&, int64_t, int64_t) override {}
  std::vector<Tap> Taps() override {
    return {{layer_, TapPoint::kInput, [this](const Rows& rows, const Batch&) {
               const MatrixView<const float> h = rows.host();
               for (int64_t i = 0; i < h.rows; ++i) received.insert(received.end(), h.row(i), h.row(i) + h.cols);
             }}};
  }
  void Complete(int64_t) override {}
  std::vector<float> received;

 private:
  int64_t layer_;
};

TEST_F(PassTest, BeginsAtABlockWithTheStreamsThatWereKeptThere) {
  const auto received = [&](int64_t tapped, std::span<const KeptRows> streams) {
    Listener listener(tapped);
    Pass pass(context_, model_.weights);
    pass.Add(listener);
    if (!streams.empty()) pass.BeginAt(2, streams);
    pass.Run("listening", text_, quiet_);
    return listener.received;
  };
  StreamProbe kept({1, 2, 4}, std::ssize(text_));
  Pass pass(context_, model_.weights);
  pass.Add(kept);
  pass.Run("keeping", text_, quiet_);
  int64_t layer = 3;
  std::vector<KeptRows> streams = kept.Take(layer);
  EXPECT_EQ(layer, 2);
  EXPECT_EQ(received(4, streams), received(4, {}));
  EXPECT_EQ(received(2, streams), received(2, {}));
  EXPECT_THROW(received(1, streams), Error) << "which does not run";
  EXPECT_THROW(received(4, std::span(streams).first(2)), Error) << "of three batches";
  streams[0].Add(streams[0].rows());  // so it is these streams that run
  EXPECT_NE(received(4, streams), received(4, {}));
  layer = 5;
  EXPECT_TRUE(kept.Take(layer).empty()) << "they were taken";
  StreamProbe deep({4}, 1);
  layer = 3;
  EXPECT_TRUE(deep.Take(layer).empty());
  EXPECT_EQ(layer, 3);
}

class Phases : public NoProgress {
 public:
  void Begin(std::string_view phase, int64_t total) override { seen.push_back(fmt::format("{} {}", phase, total)); }
  std::vector<std::string> seen;
};

TEST_F(PassTest, PlansRunInTurnForEachBatchAndProbesOfOnePlanTogether) {
  Recorder a("a", log_), b("b", log_), c("c", log_);
  Pass pass(context_, model_.weights);
  pass.Add(a);
  pass.Add(DepthPlan::Pruned(kLayers, std::vector<int64_t>{3}), b);
  pass.Add(c);
  Phases phases;
  pass.Run("listening", std::span(text_).first(2), phases);
  EXPECT_EQ(log_, (Log{"a begin 0-1", "b begin 0-1", "c begin 0-1", "a receives 7", "c receives 7", "b receives 7",
                       "a receives 8", "c receives 8", "b receives 8", "a completes 2", "b completes 2",
                       "c completes 2", "a ends", "b ends", "c ends"}));
  EXPECT_EQ(phases.seen, (Log{"listening 12"})) << "tokens of two plans";
}

TEST_F(PassTest, WhatADeviceHasNoMemoryForIsDoneInGroupsOfHalfTheSize) {
  Recorder many("many", log_, 5, 2), one("one", log_);
  Pass pass(context_, model_.weights);
  pass.Add(many);
  pass.Add(one);
  Phases phases;
  pass.Run("listening", std::span(text_).first(1), phases);
  EXPECT_EQ(log_, (Log{"many begin 0-5", "many begin 0-3", "many begin 0-2", "one begin 0-1", "many receives 7",
                       "one receives 7", "many completes 1", "one completes 1", "many ends", "one ends",  //
                       "many begin 2-4", "many receives 7", "many completes 1", "many ends",              //
                       "many begin 4-5", "many receives 7", "many completes 1", "many ends"}));
  EXPECT_EQ(phases.seen, (Log{"listening, sites 1 to 2 of 5 3", "listening, sites 3 to 4 of 5 3",
                              "listening, sites 5 to 5 of 5 3"}));
}

TEST_F(PassTest, NoMemoryForOnePartIsAnError) {
  Recorder probe("a", log_, 4, 0);
  Pass pass(context_, model_.weights);
  pass.Add(probe);
  EXPECT_THROW(pass.Run("listening", text_, quiet_), OutOfMemory);
  EXPECT_EQ(log_, (Log{"a begin 0-4", "a begin 0-2", "a begin 0-1"}));
}

TEST_F(PassTest, AnInterruptedPassCompletesWhatItReceived) {
  struct Impatient : NoProgress {
    void Advance(int64_t) override {
      if (++advanced == 2) throw Interrupted();
    }
    int advanced = 0;
  } impatient;
  Recorder probe("a", log_);
  Pass pass(context_, model_.weights);
  pass.Add(probe);
  EXPECT_THROW(pass.Run("listening", text_, impatient), Interrupted);
  EXPECT_EQ(log_, (Log{"a begin 0-1", "a receives 7", "a receives 8", "a completes 2"}));
}

TEST_F(PassTest, ProbesCompleteBeforeACheckpointIsSaved) {
  struct Second : PassCheckpoint {
    explicit Second(Log& log) : log(log) {}
    bool Due() override { return ++asked == 2; }
    void Save() override { log.emplace_back("saved"); }
    Log& log;
    int asked = 0;
  } checkpoint(log_);
  Recorder probe("a", log_);
  Pass pass(context_, model_.weights);
  pass.Add(probe);
  pass.Run("listening", text_, quiet_, &checkpoint);
  EXPECT_EQ(log_, (Log{"a begin 0-1", "a receives 7", "a receives 8", "a completes 2", "saved", "a receives 9",
                       "a completes 1", "a ends"}));
}

}  // namespace
}  // namespace shiftrt

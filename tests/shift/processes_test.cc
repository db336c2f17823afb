// SPDX-License-Identifier: Apache-2.0
// The method in several processes: the bits of one, whatever their number.
#include <mutex>

#include "runtime/progress.h"
#include "shift/measure/drift.h"
#include "shift/measure/loss.h"
#include "shift/pipeline.h"
#include "shift/sums/collect.h"
#include "shift/sums/gram_file.h"
#include "tests/runtime/thread_link.h"
#include "tests/shift/small_model.h"

namespace shiftrt {
namespace {

class MethodInProcesses : public test::SmallModel {
 protected:
  MethodInProcesses() { calibration_ = MakeCalibration(4, 21); }  // 19 and 2 batches: rounds that are not full

  // The results of work(job) in each of so many processes.
  template <typename Result>
  std::vector<Result> In(int size, const std::function<Result(const ShiftJob&)>& work) {
    std::vector<Result> results(size);
    InProcesses(size, [&](const std::shared_ptr<Processes>& processes) {
      Context context = context_;
      context.processes = processes;
      NoProgress quiet;
      try {
        results[processes->rank()] = work({context, model_, calibration_, quiet});
      } catch (const std::exception& error) {
        ADD_FAILURE() << "process " << processes->rank() << ": " << error.what();
      }
    });
    return results;
  }

  struct Found {
    std::string plan;
    std::vector<BlockPart> removed;
    std::vector<double> numbers;  // scores, and what sites report
    bool operator==(const Found&) const = default;
  };
  static Found FoundBy(const ShiftResult& result) {
    Found found{result.corrected.Fingerprint(), result.selection.removed, result.selection.scores};
    std::erase_if(found.numbers, [](double score) { return std::isnan(score); });  // protected units have NaN
    for (const FitReport& site : result.sites) {
      found.numbers.insert(found.numbers.end(), {site.r2_fit, site.lambda, site.condition, site.effective_rank});
      found.numbers.insert(found.numbers.end(), site.singular_values.begin(), site.singular_values.end());
    }
    return found;
  }
};

TEST_F(MethodInProcesses, FitsTheSameBits) {
  struct Case {
    const char *prune, *correction, *rank;
    Calibration mode = Calibration::kIndependent;
    bool norm = false, gate = false;
    Heal heal = Heal::kOff;
  };
  for (const Case& recipe :
       {Case{"bi:2", "lra", "4"}, Case{"angular:2", "lra", "energy:0.5"},
        Case{"ppl:2", "lra", "budget:300", Calibration::kIndependent, true, true},
        Case{"correctable:3,rank=2", "lra", "full", Calibration::kDrift, true},
        Case{"search:2,rounds=2,rank=2", "lra", "2"},
        Case{"taylor:2,tokens=64", "refit", "full", Calibration::kIndependent, false, false, Heal::kAll},
        Case{"streamline:2", "auto", "2"}, Case{"layers=0,3", "joint", "2"}, Case{"layers=0,3", "norm-refit", "2"},
        Case{"layers=1,3", "lra", "3", Calibration::kSequential, true}}) {
    const auto shift = [&](const ShiftJob& job) {
      Recipe options{.mode = Calibration::kIndependent};
      options.prune = ParsePrune(recipe.prune);
      options.prune.keep_first = options.prune.layers.empty() ? 1 : 0;
      options.correction = recipe.correction;
      options.rank = ParseRank(recipe.rank);
      options.mode = recipe.mode;
      options.weighting.norm = recipe.norm;
      options.gate = recipe.gate;
      options.heal = recipe.heal;
      return FoundBy(Shift(job, options));
    };
    const Found expected = In<Found>(1, shift).front();
    EXPECT_FALSE(expected.numbers.empty());
    for (const int size : {2, 3, 8})
      for (const Found& found : In<Found>(size, shift))
        EXPECT_EQ(found, expected) << recipe.prune << ", " << recipe.correction << ", " << size << " processes";
  }
}

// A model that is split over processes, with groups of them that share the batches. What does not work is refused.
class MethodOnASplitModel : public MethodInProcesses {
 protected:
  // The results of work(job) in each of so many processes, `stages` of which hold a model.
  template <typename Result>
  std::vector<Result> InGroups(int size, int stages, const std::function<Result(const ShiftJob&)>& work) {
    return In<Result>(size, [&](const ShiftJob& job) {
      Processes& processes = *job.context.processes;
      processes.Split(stages);
      Model part = model_;
      part.weights = LoadWeights(model_.directory, {.split = {stages, processes.part()}});
      Result result = work({job.context, part, job.calibration, job.progress});
      processes.Barrier();
      return result;
    });
  }

  static Recipe Options(const std::string& prune, const std::string& correction, const std::string& rank) {
    Recipe options{.mode = Calibration::kIndependent};
    options.prune = ParsePrune(prune);
    options.correction = correction;
    options.rank = ParseRank(rank);
    return options;
  }
};

TEST_F(MethodOnASplitModel, FitsTheSameBits) {
  struct Case {
    const char *prune, *correction, *rank;
    bool norm = false;
    Merge merge = Merge::kOff;
    bool span = false;
  };
  for (const Case& recipe :
       {Case{"bi:3", "lra", "4"}, Case{"bi:frobenius:2", "lra", "energy:0.5", true},
        Case{"bi:5,unit=half", "lra", "budget:300"}, Case{"angular:1", "none", "4"},
        Case{"layers=1,2,4", "lra", "full", false, Merge::kFull}, Case{"streamline:1", "lra", "3", true},
        Case{"layers=1.mlp-4,5.attn", "lra", "4", true, Merge::kOff, true}, Case{"ppl:2,unit=half", "lra", "4"},
        Case{"ppl-greedy:2,tokens=64", "none", "4"}}) {
    const auto shift = [&](const ShiftJob& job) {
      Recipe options = Options(recipe.prune, recipe.correction, recipe.rank);
      options.weighting.norm = recipe.norm;
      options.merge = recipe.merge;
      options.span = recipe.span;
      const ShiftResult result = Shift(job, options);
      Found found = FoundBy(result);
      for (const FitReport& run : result.merged_runs) found.numbers.insert(found.numbers.end(), {run.r2_fit});
      return found;
    };
    const Found expected = In<Found>(1, shift).front();
    for (const auto& [size, stages] : {std::pair(2, 2), {4, 4}, {4, 2}, {6, 2}, {7, 7}}) {
      for (const Found& found : InGroups<Found>(size, stages, shift))
        EXPECT_EQ(found, expected) << recipe.prune << ", " << size << " processes, " << stages << " stages";
    }
  }
}

TEST_F(MethodOnASplitModel, SumsAndFitsAreWhereTheBlockIs) {
  const auto fits = [](const ShiftJob& job) {
    Shift(job, Options("layers=0,1,5", "lra", "4"));
    return job.context.processes->work;
  };
  const std::vector<ProcessWork> works = InGroups<ProcessWork>(3, 3, fits);
  EXPECT_EQ(works[0].fits, 2);
  EXPECT_EQ(works[1].fits, 0);
  EXPECT_EQ(works[2].fits, 1);
}

TEST_F(MethodOnASplitModel, RefusesWhatNeedsTheWholeModel) {
  const std::pair<std::string, std::function<void(Recipe&)>> changes[] = {
      {"prune", [](Recipe& o) { o.prune = ParsePrune("taylor:1"); }},
      {"prune", [](Recipe& o) { o.prune = ParsePrune("magnitude-l1:1"); }},
      {"correction", [](Recipe& o) { o.correction = "bias"; }},
      {"mode", [](Recipe& o) { o.mode = Calibration::kDrift; }},
      {"heal", [](Recipe& o) { o.heal = Heal::kAll; }},
      {"gate", [](Recipe& o) { o.gate = true; }},
      {"gram.save", [](Recipe& o) { o.gram.save = "sums"; }},
      {"", [](Recipe& o) { o.prune = ParsePrune("streamline:2"); }}};
  for (const auto& [field, change] : changes) {
    const std::string expected = field;
    const std::function<void(Recipe&)> apply = change;
    InGroups<int>(2, 2, [&](const ShiftJob& job) {
      Recipe options = Options("layers=2,3", "lra", "4");
      apply(options);
      try {
        Shift(job, options);
        ADD_FAILURE() << "not refused: " << expected;
      } catch (const UsageError& error) {
        EXPECT_EQ(error.field(), expected) << error.what();
      }
      return 0;
    });
  }
}

TEST_F(MethodInProcesses, MeasuresTheSameLoss) {
  const auto loss = [](const ShiftJob& job) {
    return MeanLoss(job.context, job.model.weights, job.model.plan, job.calibration.fit, job.progress);
  };
  const double expected = In<double>(1, loss).front();
  for (const double found : In<double>(5, loss)) EXPECT_EQ(found, expected);
}

// Interrupts the process that it belongs to after so many calls.
class Interruption : public Progress {
 public:
  explicit Interruption(int64_t calls) : left_(calls) {}
  void Begin(std::string_view, int64_t) override {}
  void Advance(int64_t) override {
    if (left_-- == 0) throw Interrupted();
  }
  void End() override {}

 private:
  int64_t left_;
};

TEST_F(MethodInProcesses, OthersGoOnWithACollectionToTheSameBits) {
  const auto collect = [&](const Context& context, Progress& progress, const std::string& name) {
    const ShiftJob job = {context, model_, calibration_, progress};
    CollectIntoFile(job, NewSavedSums(job, {1, 3, 4}, "plain"), directory_ / name);
  };
  NoProgress quiet;
  collect(context_, quiet, "whole");
  for (const int later : {1, 2, 4}) {
    const std::string name = "interrupted" + std::to_string(later);
    InProcesses(3, [&](const std::shared_ptr<Processes>& processes) {
      Context context = context_;
      context.processes = processes;
      Interruption interruption(processes->rank() == 1 ? 2 : 1000);  // all stop where one does
      EXPECT_THROW(collect(context, interruption, name), Interrupted);
    });
    const SavedSums part = ReadSums(directory_ / name);
    EXPECT_EQ(part.sums.fit_batches, 9);
    InProcesses(later, [&](const std::shared_ptr<Processes>& processes) {
      Context context = context_;
      context.processes = processes;
      NoProgress none;
      EXPECT_NO_THROW(collect(context, none, name));
    });
    EXPECT_EQ(ReadFile(directory_ / name), ReadFile(directory_ / "whole")) << later << " processes";
  }
}

TEST_F(MethodInProcesses, DealsOutFits) {
  const auto fits = [](const ShiftJob& job) {
    Recipe options{.mode = Calibration::kIndependent};
    options.prune = ParsePrune("reverse*:3");
    options.rank = RankSpec::Fixed(2);
    Shift(job, options);
    return job.context.processes->work;
  };
  const std::vector<ProcessWork> works = In<ProcessWork>(3, fits);
  for (const ProcessWork& work : works) {
    EXPECT_EQ(work.fits, 1);
    EXPECT_GE(work.batches, 6);
    EXPECT_GT(work.sent, 0);
  }
}

// The bytes of docs/dev/architecture.md, of sums of three sites, of which each process owns one.
TEST_F(MethodInProcesses, SendTheRowsToTheOwnerAndItsSumsToAll) {
  const auto collect = [](const ShiftJob& job) {
    CalibrationSums sums = CalibrationSums::Empty({1, 2, 4}, kWidth);
    Collect(job, sums);
    return job.context.processes->work;
  };
  int64_t sent = 0, tokens = 0;
  for (const ProcessWork& work : In<ProcessWork>(3, collect)) sent += work.sent;
  for (const std::vector<Batch>* text : {&calibration_.fit, &calibration_.heldout})
    for (const Batch& batch : *text) tokens += batch.size();
  const int64_t rows = 2 * tokens * (8 * kWidth + 24), sums = 2 * 3 * 2 * 4 * (kWidth + 1) * (3 * kWidth + 2);
  EXPECT_NEAR(static_cast<double>(sent), static_cast<double>(rows + sums), 0.05 * static_cast<double>(sent));
}

}  // namespace
}  // namespace shiftrt

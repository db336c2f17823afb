// SPDX-License-Identifier: Apache-2.0
// The method on the emulated devices of several processes, with batches of a few tokens: `shiftrt` itself would take
// minutes for its batches. Prints for each recipe what it found, and in how many passes.
//   emulated_worker MODEL DEVICE [memory BYTES | split N]
// With `memory`, the device of the last process has so little, and one recipe is tried. With `split`, N processes hold
// the model together, and the recipes that such a model takes are tried.
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "kernels/emulated/device.h"
#include "models/model.h"
#include "runtime/launcher.h"
#include "runtime/random.h"
#include "shift/pipeline.h"
#include "tools/options.h"

namespace shiftrt {
namespace {

CalibrationSet Text(int64_t vocab) {
  CalibrationSet calibration;
  Random random(3);
  for (int i = 0; i < 7; ++i) {  // rounds that are not full, of 2 and of 3 processes
    Batch batch;
    for (const int length : {6, 2}) {
      std::vector<int32_t> tokens(length);
      for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(vocab));
      batch.Add(tokens);
    }
    const bool heldout = i >= 5;
    (heldout ? calibration.heldout_tokens : calibration.fit_tokens) += batch.size();
    (heldout ? calibration.heldout : calibration.fit).push_back(batch);
  }
  return calibration;
}

class Passes : public NoProgress {
 public:
  void Begin(std::string_view phase, int64_t) override {
    count += phase.starts_with("calibrating") || phase.starts_with("selecting") ? 1 : 0;
  }
  int count = 0;
};

void Work(const CommonOptions& options, int64_t memory, int split) {
  Processes& processes = *options.processes;
  std::optional<emu::MemoryLimit> limit;
  if (memory > 0 && processes.rank() + 1 == processes.size()) limit.emplace(memory);
  processes.Split(split);
  struct Case {
    const char *prune, *correction, *rank;
    Calibration mode = Calibration::kIndependent;
    bool norm = false;
    bool split = false;  // true if a split model takes it
    Merge merge =
        Merge::kOff;  // with it the sums are also of the run, which a split model has on both sides of a border
  };
  for (const Case& recipe : {Case{"bi:2", "lra", "4", Calibration::kIndependent, false, true},
                             Case{"layers=1,2", "lra", "4", Calibration::kIndependent, true, true, Merge::kFull},
                             Case{"correctable:1,rank=4", "lra", "full", Calibration::kIndependent, true},
                             Case{"ppl:1", "lra", "4", Calibration::kDrift}, Case{"layers=0,1", "joint", "4"}}) {
    const std::string prune = recipe.prune;
    if (memory > 0 && !prune.starts_with("correctable")) continue;
    if (split > 1 && !recipe.split) continue;
    Model model;
    model.weights = LoadWeights(options.model, {.split = {split, processes.part()}});
    model.plan = DepthPlan::Original(4);
    const CalibrationSet calibration = Text(model.weights->config.vocab);
    Passes passes;
    Recipe shift{.mode = Calibration::kIndependent};
    shift.prune = ParsePrune(recipe.prune);
    shift.correction = recipe.correction;
    shift.rank = ParseRank(recipe.rank);
    shift.mode = recipe.mode;
    shift.weighting.norm = recipe.norm;
    shift.merge = recipe.merge;
    const ShiftResult found = Shift({options.MakeContext(), model, calibration, passes}, shift);
    const std::string plan = (found.merged ? *found.merged : found.corrected).Fingerprint();
    processes.CheckSame("plan", plan);
    if (processes.first())
      fmt::print("{} {} {}: {} {} passes {}\n", recipe.prune, recipe.correction, recipe.rank, plan,
                 found.sites.front().r2_fit, passes.count);
  }
}

}  // namespace
}  // namespace shiftrt

int main(int argc, char** argv) {
  shiftrt::CommonOptions options(shiftrt::JoinProcesses());
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    const auto number = [&](const char* of, int64_t fallback) {
      return words.size() == 4 && words[2] == of ? std::stoll(words[3]) : fallback;
    };
    options.model = words.at(0);
    options.device = words.at(1);
    options.threads = 1;
    shiftrt::Work(options, number("memory", 0), static_cast<int>(number("split", 1)));
    options.processes->Barrier();
    return 0;
  } catch (const shiftrt::PeerFailed&) {
    return 1;
  } catch (const std::exception& error) {
    if (options.processes->first()) std::fprintf(stderr, "%s\n", error.what());
    options.processes->Fail(error.what());
    return 1;
  }
}

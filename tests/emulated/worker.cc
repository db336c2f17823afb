// SPDX-License-Identifier: Apache-2.0
// The method on the emulated devices of several processes, with batches of a few tokens: `shiftrt` itself would take
// minutes for its batches. Prints for each recipe what it found, and in how many passes.
//   emulated_worker DEVICE [MEMORY]    MEMORY: bytes of the device of the last process
#include <cstdio>
#include <exception>
#include <optional>
#include <string>

#include "kernels/emulated/device.h"
#include "models/model.h"
#include "runtime/launcher.h"
#include "runtime/random.h"
#include "shift/pipeline.h"
#include "tests/cuda/models.h"
#include "tools/options.h"

namespace shiftrt {
namespace {

CalibrationSet Text(int64_t vocab) {
  CalibrationSet calibration;
  Random random(3);
  for (int i = 0; i < 7; ++i) {  // rounds that are not full, of 2 and of 3 processes  // rounds that are not full, of 2
                                 // and of 3 processes
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

void Work(const CommonOptions& options, std::optional<int64_t> memory) {
  Processes& processes = *options.processes;
  std::optional<emu::MemoryLimit> limit;
  if (memory && processes.rank() + 1 == processes.size()) limit.emplace(*memory);
  struct Recipe {
    const char *prune, *correction, *rank;
    Calibration mode = Calibration::kIndependent;
    bool norm = false;
  };
  for (const Recipe& recipe :
       {Recipe{"bi:2", "lra", "4"}, Recipe{"correctable:1,rank=4", "lra", "full", Calibration::kIndependent, true},
        Recipe{"ppl:1", "lra", "4", Calibration::kDrift}, Recipe{"layers=0,1", "joint", "4"}}) {
    if (memory && !std::string(recipe.prune).starts_with("correctable")) continue;
    Model model;
    model.weights = MakeWeights({.heads = 1, .layers = 4}, DType::kFloat32);
    model.plan = DepthPlan::Original(4);
    const CalibrationSet calibration = Text(model.weights->config.vocab);
    Passes passes;
    ShiftOptions shift;
    shift.prune = ParsePrune(recipe.prune);
    shift.correction = &FindCorrection(recipe.correction);
    shift.fit.rank = ParseRank(recipe.rank);
    shift.mode = recipe.mode;
    shift.weighting.norm = recipe.norm;
    const ShiftResult found = Shift({options.MakeContext(), model, calibration, passes}, shift);
    const std::string plan = found.corrected.Fingerprint();
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
    options.device = argv[1];
    options.threads = 1;
    shiftrt::Work(options, argc > 2 ? std::optional<int64_t>(std::stoll(argv[2])) : std::nullopt);
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

// SPDX-License-Identifier: Apache-2.0
// How much work of each kind `run` would do with a model of some shape, computed from its options alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "estimate/flops.h"
#include "models/weights.h"
#include "shift/pipeline.h"
#include "shift/selection_pass.h"
#include "text/calibration.h"

namespace shiftrt {

struct MainJob {
  std::shared_ptr<const Weights> weights;  // only shapes and types are looked at (models/shapes.h)
  Recipe recipe;
  CalibrationSpec calibration;  // as many samples as it asks for: the text is not read
  int64_t text_tokens = 0;      // tokens of the text whose perplexity is measured,
  int64_t window = 0;           // in windows of so many tokens
  int64_t variants = 0;         // plans that are measured
  int64_t positions = 0;        // positions of a variant's cache: prompt and reply, at most
  int64_t decoded = 0;          // tokens per variant, one at a time
  double recover_seconds = 0;   // seconds that the repaired model is trained for, or 0
  int64_t recover_tokens = 0;   // tokens that it learns from instead, or 0
  bool teacher = false;         // the original model runs during that training
  int64_t memory = 0;           // bytes of the host that sums may take; 0: three quarters of the device's or its host's
  PassMachine machine;          // one device of the hardware, for the pass that selects layers
};

enum class JobStep { kSelect, kCalibrate, kSolve, kReduce, kRecover, kEvaluate, kDecode };
constexpr JobStep kSteps[] = {JobStep::kSelect,  JobStep::kCalibrate, JobStep::kSolve, JobStep::kReduce,
                              JobStep::kRecover, JobStep::kEvaluate,  JobStep::kDecode};
const char* Name(JobStep step);

// FLOP of a step by the peak that bounds them. One pass over the calibration text counts in kCalibrate, however many
// groups memory divides the sites into. Sums that the pass of the selection collects count in kSelect. The sequential
// fit of a correction that refits projections, healing, and losses on held-out text count in kCalibrate, as in what a
// run reports.
struct StepFlops {
  double model = 0;  // products with weights, and attention
  double sums = 0;   // float64
  double fits = 0;   // float64

  double all() const { return model + sums + fits; }
};

struct JobOutline {
  int64_t units = 0;               // blocks, or halves of them, that would be removed
  bool halves = false;             // the units are halves
  std::vector<BlockPart> removed;  // the removed units; empty if they depend on text or weights
  // The mode that auto stands for if the model is not split. If it is split, sites are fitted independently.
  Calibration mode = Calibration::kIndependent;
  int64_t sites = 0;               // sites whose correction is fitted, at most
  int64_t collected = 0;           // sites whose sums are collected, at most
  int64_t tapped = 0;              // blocks from the first that a pass runs which collects them, at most
  int64_t again = 0;               // kept blocks that calibration mode drift runs on the corrected stream too, at most
  int64_t rank = 0;                // the rank of the adapters; 0: full maps, or none
  int64_t adapter_parameters = 0;  // parameters of all adapters together, at most
  int64_t shared = 0;              // blocks before the first removed one, which an evaluation runs once; 0: unknown
  int64_t after = 0;               // the first layer after the first removed run; 0: unknown
  bool selects = false;            // layers are selected by a pass over the calibration text
  SelectionPass pass;              // the work of that pass for the calibration, if one device does the job
  // The inputs of each projection, or stream with one, that a sequential fit fits, at most.
  std::vector<int64_t> sequential_inputs;
  int64_t sequential_rows = 0;  // blocks that it runs, on one stream after another, at most
  int64_t loss_tokens = 0;      // held-out tokens that measure the gain, gate and healing, over all models
  bool loads = false;           // sums come from files, so that no pass over text collects them
  CalibrationCounts calibration;
  Sequences fit, heldout, windows;
  int64_t windows_per_batch = 1;
  std::string no_split;  // why the job does not work with a split model; empty if it does
  // Work that the command would do besides, of which nothing is computed here.
  std::vector<std::string> unplanned;

  // True if each site is fitted on the stream after the one before it, which a split model does not do.
  bool in_sequence() const { return mode != Calibration::kIndependent; }
  // The inputs of the largest fit.
  int64_t widest(int64_t hidden) const;
  // Tokens of a full batch of the calibration, and of an evaluation.
  int64_t calibration_batch() const { return calibration.samples_per_batch * fit.length; }
  int64_t window_batch() const { return windows_per_batch * windows.length; }
  int64_t window_batches() const { return (windows.count + windows_per_batch - 1) / windows_per_batch; }
};

// Throws what CheckOptions and Quota throw for options that contradict each other or do not go with the model.
JobOutline OutlineOf(const MainJob& job);

// FLOP of a step on all devices together.
StepFlops FlopsOf(const MainJob& job, const JobOutline& outline, JobStep step);

// a * b * ... of counts; throws Error where 64 bits do not hold it.
int64_t CheckedProduct(std::initializer_list<int64_t> factors);

}  // namespace shiftrt

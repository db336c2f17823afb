// SPDX-License-Identifier: Apache-2.0
// The work and the memory of `run` with a model of some shape, computed from its options alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "estimate/flops.h"
#include "models/split.h"
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
  int64_t split = 1;            // processes that hold one model together (--split)
  PassMachine machine;          // what each of them runs on
  int64_t device_memory = 0;    // bytes of its GPU, which hold one site's sums or more
};

// The bytes of the process that needs the most.
struct PlannedMemory {
  int64_t weights = 0;
  int64_t activations = 0;  // one batch: the stream, the values that a block computes, copies that taps keep
  int64_t streams = 0;      // the calibration text's, if sites are fitted in sequence or the selection keeps them
  int64_t sums = 0;         // the sums of the sites that are collected at once
  int64_t fit = 0;          // matrices of the site that is being fitted, about
  int64_t logits = 0;
  int64_t cache = 0;  // keys and values
  int64_t adapters = 0;
  int64_t host_sums = 0;  // sums in the memory of a GPU's host, where they are when sites are fitted

  // The most that is needed at the same time: by a pass, a fit or an evaluation, besides the weights.
  int64_t most() const;
};

// The work of one step.
struct StepWork {
  const char* name = "";
  double products = 0;  // FLOP of products with weights, and of attention
  double float64 = 0;   // FLOP of sums and fits
  double reads = 0;     // bytes that are read one token after another
  double seconds = 0;   // a budget of time that the options give

  double flops() const { return products + float64; }
};

struct JobPlan {
  int64_t units = 0;               // blocks, or halves of them, that would be removed
  bool halves = false;             // the units are halves
  std::vector<BlockPart> removed;  // the removed units; empty if they depend on text or weights
  Calibration mode = Calibration::kIndependent;
  bool sequential = false;         // projections are fitted, one site after another
  bool loads = false;              // sums come from files, so that no pass over text collects them
  bool selects = false;            // layers are selected by a pass over the calibration text
  int64_t sites = 0;               // sites whose correction is fitted, at most
  int64_t adapter_parameters = 0;  // parameters of all adapters together, at most
  SelectionPass pass;              // the work of the selecting pass for the calibration
  CalibrationCounts calibration;
  Sequences fit, heldout, windows;
  int64_t passes = 1;  // over the calibration text, if memory divides the sites into groups
  PlannedMemory memory;
  // In order. Sums that the pass of the selection collects count as its work. The sequential fit of a correction that
  // refits projections, healing, and losses on held-out text count as calibration, as in what a run reports.
  std::vector<StepWork> steps;
  // Work that the command would do besides, of which nothing is computed here.
  std::vector<std::string> unplanned;

  // True if each site is fitted on the stream after the one before it.
  bool in_sequence() const { return mode != Calibration::kIndependent; }
  // The step of this name: select, calibrate, solve, factorize, recover, evaluate or decode.
  const StepWork& Step(const std::string& name) const;
};

// Throws what CheckOptions, Quota and CutModel throw for options that contradict each other or do not go with the
// model, or with a split one, and Error for a size that 64 bits do not hold.
JobPlan PlanOf(const MainJob& job);

// a * b * ... of counts; throws Error where 64 bits do not hold it.
int64_t CheckedProduct(std::initializer_list<int64_t> factors);

}  // namespace shiftrt

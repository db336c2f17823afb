// SPDX-License-Identifier: Apache-2.0
// Our own criterion: it scores a block, or a half of one, by the part of its update that no adapter can reproduce.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "shift/criteria/greedy.h"
#include "shift/sums/ridge_probe.h"

namespace shiftrt {

// An adapter in place of a unit, and its residual: the mean over the calibration tokens of |d - h A_r - b|^2 / |h +
// d|^2, for a token whose stream before the unit is h and after it h + d.
struct Correctable {
  std::shared_ptr<const Lra> lra;
  double residual = 0;

  friend auto FieldsOf(Correctable& c) { return std::tie(c.lra, c.residual); }
};

// Fits adapters in place of every unit: reduced-rank regressions with lambda by generalised cross-validation. Its
// parts are the units, whose sums take (2 d^2 + 3 d) x 8 bytes each. If the memory of the host
// (runtime/host_memory.h) or of a GPU has no room for the sums of all of them, they are processed in groups, with one
// run of the text per group. For passes without checkpoints.
class CorrectableProbe : public Probe {
 public:
  CorrectableProbe(const CriterionInput& input, Progress& progress);
  void Want(Unit unit, int64_t rank);
  const std::vector<Correctable>& Found(Unit unit, int64_t rank) const { return found_.at({unit, rank}); }  // per unit

  int64_t parts() const override;
  int64_t parts_at_once() const override;
  bool dealt() const override { return true; }
  void Begin(Collector& collector, int64_t begin, int64_t end) override;
  std::vector<Tap> Taps() override { return probe_->Taps(); }
  void Complete(int64_t batches) override { probe_->Complete(batches); }
  void End() override;

 private:
  const CriterionInput& input_;
  Progress& progress_;
  struct Part {
    Unit unit;
    Site site;
  };
  std::vector<Part> parts_;
  int64_t begin_ = 0;            // the first site of the current group
  std::vector<RidgeSums> sums_;  // the sums of the current group
  std::optional<RidgeProbe> probe_;
  std::map<std::pair<Unit, int64_t>, std::vector<Correctable>> found_;  // results, by unit and rank
};

// The adapters of the rank that the task's options say, after the pass. Plug PlugCorrections() before it.
StandIn CorrectedBy(const CriterionTask& task);

}  // namespace shiftrt

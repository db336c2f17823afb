// SPDX-License-Identifier: Apache-2.0
// One pass over text, into which probes are plugged. It handles progress, interruption, checkpoints, the division of
// work for which a device has no memory, and the turns of several GPUs. The collector (engine/collector.h) exchanges
// what it takes of the batches that processes share.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/collector.h"
#include "engine/decoder.h"
#include "runtime/progress.h"

namespace shiftrt {

// Measures something during a pass. Its work has parts, such as layers or sites. If a device has no memory for all
// parts at once, the pass divides them into groups and runs the text once per group.
class Probe {
 public:
  virtual ~Probe() = default;
  virtual int64_t parts() const { return 1; }
  // The number of parts that may be processed at once, not considering device memory; at least 1.
  virtual int64_t parts_at_once() const { return parts(); }
  // The number of batches that it measures of `all`, from the first. A pass leaves out batches that no probe measures.
  virtual int64_t batches(int64_t all) const { return all; }
  // Starts a run of the text for the parts begin .. end - 1. Measurements since the last Complete() are discarded: an
  // aborted run starts again from there. `collector` is valid until the run ends. May throw OutOfMemory.
  virtual void Begin(Collector& collector, int64_t begin, int64_t end) = 0;
  // Its taps on one device. Called once per device after each Begin(). The sinks of all devices are called by one
  // thread, in the order of the batches.
  virtual std::vector<Tap> Taps() = 0;
  // True if the batches may be dealt out: the probe measures through adders and records of the collector alone, which
  // bring together what was received of all batches. Other probes receive every batch of the pass.
  virtual bool dealt() const { return false; }
  // The sinks are now called for batch `batch` of the pass.
  virtual void BeginBatch(int64_t /*batch*/) {}
  // Completes the measurements of these parts, over `batches` batches since Begin() or the last Complete(), so that
  // they can be read. Called at the end of a run, before a checkpoint, and when the pass is interrupted.
  virtual void Complete(int64_t batches) = 0;
  // All batches were run for these parts; Complete() has been called.
  virtual void End() {}
};

// Saves the results of a pass while it is running.
class PassCheckpoint {
 public:
  virtual ~PassCheckpoint() = default;
  virtual bool Due() = 0;  // asked after each batch
  virtual void Save() = 0;
};

class Pass {
 public:
  // Over decoders of these weights, one per GPU of `context`, or one on the CPU.
  Pass(const Context& context, std::shared_ptr<const Weights> weights);
  // Plugs in a probe of the original model, or of another depth plan. Plans run in the order of their first probe, one
  // after another for each batch. The probe lasts as long as the pass.
  void Add(Probe& probe);
  void Add(const DepthPlan& plan, Probe& probe);
  // Lets the pass begin at block `layer` of the original model, its only plan, from the streams that are kept there:
  // one per batch that Run() will be given, empty where another process has the batch. No probe taps an earlier block.
  // They last as long as the pass.
  void BeginAt(int64_t layer, std::span<const KeptRows> streams);

  // Runs `batches` up to the last tap. They are dealt out unless a probe must receive them all. Devices take batches in
  // turns; a GPU is given its next one while the others work at theirs. Where a device has no memory
  // for the parts of the probes, the largest group is halved and the rest of the work is done in such groups. When it
  // is interrupted, and for `checkpoint`, which saves as long as all parts are done at once, the probes have completed.
  // Throws OutOfMemory where no group can be halved any more.
  void Run(const std::string& phase, std::span<const Batch> batches, Progress& progress,
           PassCheckpoint* checkpoint = nullptr);

 private:
  struct Group;     // the parts of one probe that a run serves, and what is left of them
  class DeviceRun;  // one device's decoders
  // The batches of a pass; the first `completed` are done for all parts.
  struct Text {
    std::span<const Batch> batches;
    int64_t completed = 0;
  };

  void RunGroups(const std::string& phase, Text& text, std::vector<Group>& groups, Progress& progress,
                 PassCheckpoint* checkpoint);

  Context context_;
  std::shared_ptr<const Weights> weights_;
  std::vector<DepthPlan> plans_;
  struct Plugged {
    Probe* probe;
    size_t plan;
  };
  std::vector<Plugged> probes_;
  int64_t first_ = 0;  // the block at which it begins
  std::span<const KeptRows> streams_;
};

}  // namespace shiftrt

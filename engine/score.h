// SPDX-License-Identifier: Apache-2.0
// Depth plans over one model that run the same batches. Stages with which several of them begin run once per batch.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/decoder.h"
#include "runtime/progress.h"

namespace shiftrt {

class PlanTree {
 public:
  // Receives the stream after the last stage of a plan, (batch.size(), hidden), with the bits of Decoder::Forward, and
  // the decoder whose head scores it. The stream is valid during the call.
  using Score = std::function<void(size_t plan, Decoder& decoder, const Rows& stream)>;

  // `plans`: at least one, or Error is thrown.
  PlanTree(const Context& context, const std::shared_ptr<const Weights>& weights, const std::vector<DepthPlan>& plans);

  size_t plans() const { return decoder_of_.size(); }
  const Context& context() const { return decoders_.front().context(); }
  // The number of stages with which all plans begin.
  int64_t shared_stages() const { return std::ssize(root_.stages); }
  // The decoder whose head scores the streams of a plan.
  Decoder& decoder(size_t plan) { return decoders_[decoder_of_[plan]]; }

  // Runs a batch, and calls `score` once for each plan, in any order, or for those with wanted(plan).
  void Run(const Batch& batch, const Score& score, const std::function<bool(size_t plan)>& wanted = {});

 private:
  // Stages that all plans `below` run, the plans that end after them, and the branches of the others.
  struct Branch {
    std::vector<Stage> stages;
    std::vector<size_t> below, ending;
    std::vector<Branch> branches;  // the one of the most plans is the last
  };
  struct Call;
  Branch BranchOf(const std::vector<DepthPlan>& plans, std::vector<size_t> below, size_t from) const;
  void Run(const Branch& first, const Rows* from, size_t depth, const Call& call);

  const bool whole_;  // the model is not split
  Branch root_;
  std::deque<Decoder> decoders_;    // one per output that the plans have
  std::vector<size_t> decoder_of_;  // by plan
  std::deque<KeptRows> kept_;       // the streams from which branches continue
};

// The mean loss over the predicted tokens of all batches under each plan, in nats per token. Throws Error where none is
// predicted. `phase` names the pass for the progress, which counts the tokens of every plan.
std::vector<double> MeanLosses(const Context& context, const std::shared_ptr<const Weights>& weights,
                               const std::vector<DepthPlan>& plans, const std::vector<Batch>& batches,
                               const std::string& phase, Progress& progress);

}  // namespace shiftrt

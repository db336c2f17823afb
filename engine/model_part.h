// SPDX-License-Identifier: Apache-2.0
// One process's part of a decoder whose model is split over several: it takes over the stream from the process before,
// runs the stages that it holds, and passes the stream on (docs/scale.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "engine/layer_loop.h"
#include "models/split.h"
#include "runtime/processes.h"

namespace shiftrt {

class ModelPart {
 public:
  // For weights that are split over as many processes as a group of `processes` has; throws UsageError for others. They
  // make the same calls in the same order.
  ModelPart(std::shared_ptr<Processes> processes, std::shared_ptr<const Weights> weights);

  // Those of the stages, which are a plan's last, that this process runs. An adapter is run where the next block is.
  std::span<const Stage> Mine(std::span<const Stage> stages) const;
  bool last() const { return share().last; }  // it has the head

  // Makes the call's part of this process, for which run(part) runs the layers. Returns the stream after its own
  // stages, which on the last process is that after all. Valid until the next call.
  Rows Run(const LayerCall& call, const TapSet& taps, const std::function<Rows(const LayerCall&)>& run);
  // The token that the last process chose, on all processes.
  int32_t Token(int32_t chosen);

 private:
  const ModelShare& share() const { return weights_->shares[weights_->share]; }
  Rows TakeOver(const LayerCall& call);

  std::shared_ptr<Processes> processes_;
  std::shared_ptr<const Weights> weights_;
  Matrix<float> taken_over_;
};

}  // namespace shiftrt

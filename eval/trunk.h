// SPDX-License-Identifier: Apache-2.0
// Plans over one model that run the same batches: the stages with which all of them begin run once per batch.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "engine/decoder.h"

namespace shiftrt {

class Trunk {
 public:
  // `plans`: at least one.
  Trunk(const Context& context, const std::shared_ptr<const Weights>& weights, std::vector<DepthPlan> plans);

  int64_t shared_stages() const { return shared_; }
  size_t plans() const { return plans_.size(); }

  // Runs the shared stages of a batch. The calls of Finish that follow continue from their stream.
  void Begin(const Batch& batch);
  // The stream after the last stage of a plan, with the bits of Decoder::Forward. It is valid until the next call.
  Rows Finish(const Batch& batch, size_t plan);
  // The decoder whose head scores the streams of a plan.
  Decoder& decoder(size_t plan) { return decoders_[decoder_of_[plan]]; }

 private:
  std::vector<DepthPlan> plans_;
  int64_t shared_ = 0;
  std::deque<Decoder> decoders_;    // one per output that the plans have
  std::vector<size_t> decoder_of_;  // by plan
  Rows stream_;                     // after the shared stages
  KeptRows kept_;
};

}  // namespace shiftrt

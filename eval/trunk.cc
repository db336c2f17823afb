// SPDX-License-Identifier: Apache-2.0
#include "eval/trunk.h"

#include <algorithm>
#include <span>
#include <utility>

#include "runtime/check.h"

namespace shiftrt {

Trunk::Trunk(const Context& context, const std::shared_ptr<const Weights>& weights, std::vector<DepthPlan> plans)
    : plans_(std::move(plans)) {
  Check(!plans_.empty(), "there is no plan to run");
  std::vector<Stage> stages = plans_.front().stages;
  for (const DepthPlan& plan : plans_) {
    const auto end = std::mismatch(stages.begin(), stages.end(), plan.stages.begin(), plan.stages.end()).first;
    stages.erase(end, stages.end());
  }
  shared_ = std::ssize(stages);
  for (size_t p = 0; p < plans_.size(); ++p) {
    const auto alike = std::find_if(plans_.begin(), plans_.begin() + static_cast<int64_t>(p),
                                    [&](const DepthPlan& plan) { return plan.output == plans_[p].output; });
    const auto known = static_cast<size_t>(alike - plans_.begin());
    if (known < p) {
      decoder_of_.push_back(decoder_of_[known]);
      continue;
    }
    decoder_of_.push_back(decoders_.size());
    decoders_.emplace_back(context, weights, DepthPlan{stages, plans_[p].output});
  }
}

void Trunk::Begin(const Batch& batch) {
  stream_ = decoders_.front().Forward(batch);
  if (plans_.size() == 1) return;  // no stages of its own that would overwrite it
  kept_.Set(stream_);
  stream_ = kept_.rows();
}

Rows Trunk::Finish(const Batch& batch, size_t plan) {
  const auto rest = std::span(plans_[plan].stages).subspan(static_cast<size_t>(shared_));
  return rest.empty() ? stream_ : decoder(plan).Resume(batch, stream_, rest);
}

}  // namespace shiftrt

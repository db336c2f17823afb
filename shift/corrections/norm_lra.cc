// SPDX-License-Identifier: Apache-2.0
// Linear residual adapters on the normed stream: h += norm(h) A + b. The norm has a gain of 1, because A has every
// other gain in its rows. llama.cpp has a place for them (models/gguf_layers.h).
#include "shift/corrections/corrections.h"
#include "shift/sums/row_norm.h"

namespace shiftrt {

FittedSites FitNormLra(const FitInput& input) {
  FittedSites fitted = FitSites(input.job.context, input.sums, input.options, input.job.progress);
  for (std::shared_ptr<const Lra>& adapter : fitted.adapters) {
    Lra normed{adapter->a.Clone(), adapter->p.Clone(), adapter->q.Clone(), adapter->b.Clone(),
               NormOfGainOne(input.job.model.weights->config)};
    adapter = std::make_shared<const Lra>(std::move(normed));
  }
  return fitted;
}

}  // namespace shiftrt

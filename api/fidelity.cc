// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/fidelity.h"

#include <algorithm>
#include <limits>

#include "api/impl.h"
#include "eval/fidelity.h"
#include "eval/perplexity.h"
#include "runtime/check.h"
#include "runtime/processes.h"

namespace shiftrt {

std::vector<SequenceFidelities> MeasureTokenFidelity(std::span<const ModelVariant> models,
                                                     std::span<const FidelitySequence> sequences,
                                                     const Resources& resources, Progress* progress) {
  std::vector<ComparedModel> compared;
  for (const ModelVariant& variant : models) {
    const Model& model = variant.model.impl().model;
    if (!model.weights->shares.empty())
      FailUsage(Field("models"), "{} is split over processes, and a divergence takes whole models", variant.name);
    compared.push_back({model.weights, model.plan});
  }
  const Context context = MakeContext(resources);
  const auto turn = context.TakeTurn();
  ProgressOf reports(progress);
  return MeasureTokenFidelity(context, compared, sequences, reports);
}

std::vector<Fidelity> MeasureFidelity(std::span<const ModelVariant> models, const HeldOutText& heldout,
                                      const std::string& protocol, const Resources& resources, Progress* progress) {
  int64_t window = std::numeric_limits<int64_t>::max();
  for (const ModelVariant& variant : models) window = std::min(window, WindowOf(variant.model, protocol));
  std::vector<Fidelity> found;
  for (const SequenceFidelities& variant :
       MeasureTokenFidelity(models, WindowsOf(heldout.tokens, window), resources, progress)) {
    std::vector<TokenFidelity> all;
    for (const std::vector<TokenFidelity>& tokens : variant) all.insert(all.end(), tokens.begin(), tokens.end());
    found.push_back(SummarizeFidelity(all));
  }
  return found;
}

}  // namespace shiftrt

// SPDX-License-Identifier: Apache-2.0
// LaCo (Yang, Cao, Zhao, 2024), the equation of its RDSC merging: theta + sum over the removed blocks of
// (theta_k - theta), for every tensor of the block before them. Its layers are whichever were selected; LaCo's own
// search is not done.
#include "models/block_tensors.h"
#include "shift/corrections/corrections.h"
#include "shift/refit/fold.h"

namespace shiftrt {

FittedSites FitLaco(const FitInput& input) {
  CheckBlockBefore(input.sites);
  const std::vector<BlockWeights>& blocks = input.job.model.weights->blocks;
  FittedSites fitted;
  fitted.adapters.resize(input.sites.size());
  for (const Site& run : input.sites) {
    const BlockWeights& own = blocks[run.layer - 1];
    const BlockSpec& spec = input.job.model.weights->config.block;
    for (const int64_t layer : run.Layers()) {
      if (spec.MixerOf(layer) != spec.MixerOf(run.layer - 1))
        FailUsage(Field("correction"), "laco adds up blocks, and of blocks {} and {} one has {} and the other {}",
                  run.layer - 1, layer, Name(std::min(spec.MixerOf(layer), spec.MixerOf(run.layer - 1))),
                  Name(std::max(spec.MixerOf(layer), spec.MixerOf(run.layer - 1))));
      if (MlpUnits(blocks[layer]) != MlpUnits(own))
        FailUsage(Field("correction"), "laco adds up blocks, and the MLPs of blocks {} and {} have {} and {} units",
                  run.layer - 1, layer, MlpUnits(own), MlpUnits(blocks[layer]));
    }
    auto folded = std::make_shared<OwnBlock>(own);
    ForEachTensor(own, [&](const BlockTensor& row, const TensorView& tensor) {
      const Matrix<double> before = InFloat64(tensor), sum = before.Clone();
      for (int64_t layer : run.Layers()) {
        const Matrix<double> other = InFloat64(row.In(blocks[layer]));
        for (int64_t i = 0; i < sum.size(); ++i) sum.data()[i] += other.data()[i] - before.data()[i];
      }
      folded->Replace(row.member, sum.span());
    });
    fitted.own.push_back({.layer = run.layer - 1, .own = OwnBlock::Share(std::move(folded))});
  }
  return fitted;
}

}  // namespace shiftrt

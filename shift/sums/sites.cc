// SPDX-License-Identifier: Apache-2.0
#include "shift/sums/sites.h"

#include <fmt/format.h>

#include <numeric>

#include "runtime/check.h"

namespace shiftrt {

Site Site::Between(int64_t begin, int64_t end) {
  const int64_t layer = begin / 2, after = (end + 1) / 2;
  return {layer, after - layer, begin % 2 != 0, end % 2 != 0};
}

std::vector<int64_t> Site::Layers() const {
  std::vector<int64_t> layers(blocks);
  std::iota(layers.begin(), layers.end(), layer);
  return layers;
}

std::string Site::Name() const { return SpanName(Parts()); }

std::vector<Site> SitesOf(const std::vector<BlockPart>& removed) {
  std::vector<Site> sites;
  sites.reserve(removed.size());
  for (const BlockPart& part : removed) sites.push_back(Site::Between(part.begin(), part.end()));
  return sites;
}

std::vector<Site> RunsOf(const std::vector<BlockPart>& removed) {
  std::vector<Site> runs;
  for (const BlockPart& part : removed) {
    if (!runs.empty() && runs.back().end() == part.begin()) {
      runs.back() = Site::Between(runs.back().begin(), part.end());
    } else {
      runs.push_back(Site::Between(part.begin(), part.end()));
    }
  }
  return runs;
}

std::vector<Stage> StagesBetween(int64_t begin, int64_t end) {
  std::vector<Stage> stages;
  if (begin >= end) return stages;
  for (const BlockPart& part : PartsBetween(begin, end)) stages.emplace_back(BlockStage{part.layer, part.halves});
  return stages;
}

DepthPlan CorrectedPlan(int64_t layers, std::span<const Site> sites,
                        std::span<const std::shared_ptr<const Lra>> adapters) {
  Check(adapters.size() == sites.size(), "{} adapters given for {} sites", adapters.size(), sites.size());
  std::vector<AdapterStage> stages;
  for (size_t i = 0; i < sites.size(); ++i) stages.push_back({sites[i].Parts(), adapters[i]});
  return DepthPlan::Corrected(layers, stages);
}

int64_t AdapterParameters(const DepthPlan& plan) {
  int64_t parameters = 0;
  for (const AdapterStage* adapter : plan.Adapters()) parameters += adapter->lra->parameters();
  return parameters;
}

}  // namespace shiftrt

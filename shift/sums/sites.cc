// SPDX-License-Identifier: Apache-2.0
#include "shift/sums/sites.h"

#include <fmt/format.h>

#include <numeric>

#include "runtime/check.h"

namespace shiftrt {

int64_t InputWidth(SiteInput input, const ModelConfig& config) {
  switch (input) {
    case SiteInput::kStream:
    case SiteInput::kMlpBefore: return config.hidden;
    case SiteInput::kActivation: return config.intermediate;
    case SiteInput::kStreamAndActivation: return config.hidden + config.intermediate;
  }
  return 0;
}

std::vector<int64_t> Site::Layers() const {
  std::vector<int64_t> layers(blocks);
  std::iota(layers.begin(), layers.end(), layer);
  return layers;
}

std::string Site::Name() const { return blocks == 1 ? std::to_string(layer) : fmt::format("{}-{}", layer, last()); }

std::vector<Site> SitesOf(const std::vector<int64_t>& removed) {
  std::vector<Site> sites;
  for (int64_t layer : removed) sites.push_back({layer, 1});
  return sites;
}

std::vector<Site> RunsOf(const std::vector<int64_t>& removed) {
  std::vector<Site> runs;
  for (int64_t layer : removed) {
    if (!runs.empty() && runs.back().last() + 1 == layer) {
      ++runs.back().blocks;
    } else {
      runs.push_back({layer, 1});
    }
  }
  return runs;
}

DepthPlan CorrectedPlan(int64_t layers, std::span<const Site> sites,
                        std::span<const std::shared_ptr<const Lra>> adapters) {
  Check(adapters.size() == sites.size(), "{} adapters given for {} sites", adapters.size(), sites.size());
  std::vector<AdapterStage> stages;
  for (size_t i = 0; i < sites.size(); ++i) stages.push_back({sites[i].Layers(), adapters[i]});
  return DepthPlan::Corrected(layers, stages);
}

int64_t AdapterParameters(const DepthPlan& plan) {
  int64_t parameters = 0;
  for (const AdapterStage* adapter : plan.Adapters()) parameters += adapter->lra->parameters();
  return parameters;
}

}  // namespace shiftrt

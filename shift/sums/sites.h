// Where blocks were removed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/plan.h"

namespace shiftrt {

// Consecutive removed blocks that one correction stands for.
struct Site {
  int64_t layer = 0;   // the first of them
  int64_t blocks = 1;  // how many

  int64_t last() const { return layer + blocks - 1; }
  std::vector<int64_t> Layers() const;
  std::string Name() const;  // "3" or "3-6"
};

// `removed` ascending: a site each, or a site for every run of neighbours.
std::vector<Site> SitesOf(const std::vector<int64_t>& removed);
std::vector<Site> RunsOf(const std::vector<int64_t>& removed);

// All layers but the sites', with adapters[i] where sites[i] was; null leaves it bare.
DepthPlan CorrectedPlan(int64_t layers, std::span<const Site> sites,
                        std::span<const std::shared_ptr<const Lra>> adapters);

}  // namespace shiftrt

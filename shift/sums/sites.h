// SPDX-License-Identifier: Apache-2.0
// Where blocks were removed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/config.h"
#include "models/plan.h"
#include "shift/sums/statistics.h"
#include "shift/sums/token_weights.h"

namespace shiftrt {

// Consecutive removed blocks, or halves of them, that one correction replaces.
struct Site {
  int64_t layer = 0;             // the first block of which something is removed
  int64_t blocks = 1;            // how many blocks
  bool from_mlp = false;         // the attention of the first layer stays
  bool up_to_attention = false;  // the MLP of the last layer stays

  static Site Between(int64_t begin, int64_t end);  // places (models/plan.h)
  int64_t begin() const { return 2 * layer + (from_mlp ? 1 : 0); }
  int64_t end() const { return 2 * (layer + blocks) - (up_to_attention ? 1 : 0); }
  int64_t last() const { return layer + blocks - 1; }
  std::vector<BlockPart> Parts() const { return PartsBetween(begin(), end()); }
  std::vector<int64_t> Layers() const;  // the layers of which something is removed
  std::string Name() const;             // "3", "3-6", "3.attn", "3.mlp-6" or "3-6.attn"

  bool operator==(const Site&) const = default;
};

// `removed` in the order of depth: a site each, or a site for every run of neighbours.
std::vector<Site> SitesOf(const std::vector<BlockPart>& removed);
std::vector<Site> RunsOf(const std::vector<BlockPart>& removed);

// The original model's stages between two places: whole blocks, but for a half at either end.
std::vector<Stage> StagesBetween(int64_t begin, int64_t end);

// The inputs of a site's sums.
enum class SiteInput {
  kStream,     // the residual stream before the site: what an adapter reads
  kNormed,     // its norm, with a gain of 1
  kMlpBefore,  // the MLP's output of the block before the site: what ReplaceMe maps
  // The half before the site, on the corrected stream, gives the others:
  kActivation,  // the input of its last projection: an MLP's gated activation, or the output of an attention's heads
  kStreamAndActivation,  // [the stream after it | that]
};

inline bool IsStream(SiteInput input) { return input == SiteInput::kStream || input == SiteInput::kNormed; }

// The sums of one site: of its inputs, and of the updates that its blocks add to the stream.
struct SiteSums {
  Site site;
  SiteInput input = SiteInput::kStream;
  TokenWeights weighting;
  RidgeSums fit, heldout;  // sums over the fitted tokens, and over those held out (none: heldout.tokens() == 0)

  static int64_t Bytes(int64_t hidden) { return 2 * RidgeSums::Bytes(hidden); }
  // Sums of no tokens.
  SiteSums(const Site& site, int64_t hidden, SiteInput input = SiteInput::kStream, TokenWeights weighting = {})
      : SiteSums(site, input, {hidden, hidden}, weighting) {}
  // Inputs and outputs per token.
  struct Widths {
    int64_t inputs, hidden;
  };
  SiteSums(const Site& site, SiteInput input, Widths widths, TokenWeights weighting = {})
      : site(site),
        input(input),
        weighting(weighting),
        fit(widths.inputs, widths.hidden),
        heldout(widths.inputs, widths.hidden) {}
  SiteSums(const Site& site, RidgeSums fit, RidgeSums heldout)
      : site(site), fit(std::move(fit)), heldout(std::move(heldout)) {}
};

// All layers but the sites', with adapters[i] where sites[i] was; null leaves it bare.
DepthPlan CorrectedPlan(int64_t layers, std::span<const Site> sites,
                        std::span<const std::shared_ptr<const Lra>> adapters);

// The number of parameters of all adapters of a plan.
int64_t AdapterParameters(const DepthPlan& plan);

}  // namespace shiftrt

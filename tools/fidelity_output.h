// SPDX-License-Identifier: Apache-2.0
// How far variants are from the original, for people, for --json and for pages.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "shiftrt/fidelity.h"
#include "tools/report/page.h"

namespace shiftrt {

// A row per variant.
struct FidelityTable {
  std::string text = {};                 // what it was measured on
  std::vector<std::string> names = {};   // the variants' names in the JSON
  std::vector<std::string> labels = {};  // the variants' names in tables
  std::vector<Fidelity> rows = {};

  bool empty() const { return rows.empty(); }
  PageTable Rows() const;
  // The table with a line above it; "" without rows.
  std::string Text() const;
  Section ToSection() const;
  nlohmann::json ToJson() const;
};

nlohmann::json FidelityJson(const Fidelity& fidelity);

// Measures all variants but the first, which is the original, on the first kFidelityTokens of the text. There are no
// rows for one variant, without a text, and where the model is split over processes.
FidelityTable FidelityOf(std::span<const ModelVariant> variants, const HeldOutText& heldout,
                         const std::string& protocol, const Resources& resources, Progress& progress);

}  // namespace shiftrt

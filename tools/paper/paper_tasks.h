// SPDX-License-Identifier: Apache-2.0
// The paper's accuracies, task by task.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "shiftrt/model.h"

namespace shiftrt {

// The setting that an evaluation has to share with one of the paper's for their numbers to be comparable.
struct PaperSetting {
  std::string model;      // as PaperModel() names it; "" where the paper does not have it
  std::string criterion;  // by which a quarter of the layers were removed; "" for another amount
};

// The setting of the original `model`, of whose layers `criterion` removed these.
PaperSetting PaperSettingOf(const LanguageModel& model, const std::string& criterion,
                            std::span<const BlockPart> removed);
// That of a saved model.
PaperSetting PaperSettingOf(const LanguageModel& saved);

// A share of 1 of variant "original", "pruned" or "lra" on `task`, zero-shot; nothing where the paper has none.
std::optional<double> PaperAccuracy(const PaperSetting& setting, std::string_view variant, std::string_view task);

}  // namespace shiftrt

// SPDX-License-Identifier: Apache-2.0
// The settings of a training as one table. Set(), CheckGiven(), the key of a checkpoint, the provenance of a trained
// model, and the options of `finetune` with their help and completion visit it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "include/shiftrt/training.h"
#include "runtime/field_rows.h"

namespace shiftrt {

// The methods that read a setting, a bit for each.
constexpr unsigned MethodBit(Method method) { return 1U << static_cast<unsigned>(method); }
constexpr unsigned kByLora = MethodBit(Method::kLora), kByPartial = MethodBit(Method::kPartial),
                   kByReplacement = MethodBit(Method::kReplacement), kByAll = ~0U;

using FinetuneField = OptionRow<FinetuneSettings>;
std::span<const FinetuneField> FinetuneFields();
// A member of LoraOptions also has its name without "lora.". Throws UsageError with the name for one that is not there.
const FinetuneField& FinetuneFieldNamed(std::string_view name);

// Throws UsageError with the field for a number outside of its bounds, or NaN.
void CheckBounds(const FinetuneSettings& settings);

// The settings that are recorded for a training by this method, with their words, but not steps and texts.
std::vector<std::pair<std::string, std::string>> RecordedSettings(const FinetuneSettings& settings);

}  // namespace shiftrt

// SPDX-License-Identifier: Apache-2.0
// The settings of a training as one table. Set(), CheckGiven(), the key of a checkpoint, the provenance of a trained
// model, and the options of `finetune` with their help and completion visit it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "include/shiftrt/finetune.h"
#include "runtime/field_rows.h"

namespace shiftrt {

// Says when a checkpoint and a trained model record a setting.
enum class Recorded : uint8_t {
  kNever,    // it does not decide the result
  kInText,   // the hash of the texts tells it
  kInSteps,  // the number of steps tells it, or the budget in seconds
  kAlways,
  kIfRead,  // the method reads it
  kIfOn,    // it is not the default
};

// The methods that read a setting, a bit for each.
constexpr unsigned MethodBit(Method method) { return 1U << static_cast<unsigned>(method); }
constexpr unsigned kByLora = MethodBit(Method::kLora), kByPartial = MethodBit(Method::kPartial),
                   kByReplacement = MethodBit(Method::kReplacement), kByAll = ~0U;

// The numbers that a setting may have, both ends included.
struct Bounds {
  double least, most;
  bool has(double value) const { return value >= least && value <= most; }
};

struct FinetuneField : FieldRow<FinetuneSettings> {
  Recorded recorded;
  std::string_view help = {};         // for the option; empty: `finetune` has none, or it sets other fields, too
  std::optional<Bounds> bounds = {};  // for numbers; the default may be outside
  unsigned read_by = kByAll;
  std::string_view choices = {};  // words of the option, with blanks between them; one that ends with ':' goes on
  std::string_view option = {};   // the name of the option and in records; empty: that of the field
  double unit = 1;                // the option counts in units of so many

  bool has_reader(Method method) const { return (read_by & MethodBit(method)) != 0; }
  std::string_view recorded_as() const { return option.empty() ? name : option; }
  std::string flag() const;  // "--rank" for lora.rank
};
std::span<const FinetuneField> FinetuneFields();
// A member of LoraOptions also has its name without "lora.". Throws UsageError with the name for one that is not there.
const FinetuneField& FinetuneFieldNamed(std::string_view name);

// Throws UsageError with the field for a number outside of its bounds, or NaN.
void CheckBounds(const FinetuneSettings& settings);

// Names and words of all settings.
std::string SettingText(const FinetuneSettings& settings);

// The settings that are recorded for a training by this method, with their words, but not steps and texts.
std::vector<std::pair<std::string, std::string>> RecordedSettings(const FinetuneSettings& settings);

}  // namespace shiftrt

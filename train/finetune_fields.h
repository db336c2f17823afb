// SPDX-License-Identifier: Apache-2.0
// The settings of a training as one table. Set(), CheckGiven(), the key of a checkpoint, the provenance of a trained
// model, and the options of `finetune` with their help and completion visit it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "include/shiftrt/finetune.h"
#include "runtime/field_rows.h"

namespace shiftrt {

// When a checkpoint and a trained model record a setting.
enum class Recorded : uint8_t {
  kNever,    // it does not decide the result
  kInText,   // the hash of the texts tells it
  kInSteps,  // the number of steps tells it, or the budget in seconds
  kAlways,
  kIfRead,  // if the method reads it
  kIfOn,    // if it is on
};

// The methods that read a setting, a bit for each.
class Methods {
 public:
  constexpr Methods(std::initializer_list<Method> methods) {
    for (const Method method : methods) bits_ |= 1U << static_cast<unsigned>(method);
  }
  static constexpr Methods All() { return {Method::kLora, Method::kPartial, Method::kAdapters, Method::kReplacement}; }
  constexpr bool has(Method method) const { return (bits_ >> static_cast<unsigned>(method) & 1U) != 0; }

 private:
  unsigned bits_ = 0;
};

// The numbers that a setting may have, both ends included.
struct Bounds {
  double least, most;
  bool has(double value) const { return value >= least && value <= most; }
};

struct FinetuneField : FieldRow<FinetuneSettings> {
  Recorded recorded = Recorded::kNever;
  std::string_view flag = {};  // the option of `finetune`; empty: it has none
  std::string_view help = {};  // the help of the option; empty: the option sets another field, too, or is not its own
  std::optional<Bounds> bounds = {};  // for numbers; the default may be outside
  Methods read_by = Methods::All();
  std::string_view choices = {};  // words of the option, with blanks between them; one that ends with ':' goes on
  double unit = 1;                // the option counts in units of so many
  std::string_view key = {};      // the name under which it is recorded; empty: its own

  std::string_view recorded_as() const { return key.empty() ? name : key; }
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

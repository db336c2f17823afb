// SPDX-License-Identifier: Apache-2.0
// Settings of a job that do not go with every criterion, every correction and each other. The rows of criteria and
// corrections say which settings they accept, and the pairs that exclude each other are here. shift/options.h has the
// check.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace shiftrt {

struct Recipe;

enum class Setting : uint8_t {
  kHalves,         // halves of blocks may be removed
  kSplit,          // the blocks of the model are divided among processes
  kUpdateNorms,    // the model norms or scales the update of a half block before it adds it
  kMixture,        // the model has mixtures of experts
  kMode,           // calibration mode sequential or drift
  kRank,           // the rank of adapters
  kFullRank,       // adapters of full rank
  kBudget,         // one budget of parameters for all adapters
  kFactorization,  // how the rank is reduced
  kLambda,         // the ridge penalty
  kPenalizedBias,  // the ridge penalty applies to the bias too
  kWeights,        // tokens have weights in the fit
  kSpan,           // one adapter per run of removed blocks
  kMerge,          // neighbouring adapters become one
  kHeal,           // projections of kept blocks are fitted again
  kGate,           // harmful corrections are dropped
  kLoadedSums,     // sums come from files
  kSavedSums,      // sums are saved
  kAllSums,        // the sums of all layers are saved
  kQuantise,       // the weights are rounded to types of fewer bits
  kMaxDivergence,  // the amount of the cut follows from the divergence of repaired models
  kCount,
};

class SettingSet {
 public:
  constexpr SettingSet() = default;
  constexpr SettingSet(std::initializer_list<Setting> settings) {
    for (const Setting setting : settings) bits_ |= Bit(setting);
  }
  static constexpr SettingSet All() { return SettingSet(Bit(Setting::kCount) - 1); }

  constexpr bool has(Setting setting) const { return (bits_ & Bit(setting)) != 0; }
  constexpr SettingSet operator|(SettingSet more) const { return SettingSet(bits_ | more.bits_); }
  constexpr SettingSet operator-(SettingSet less) const { return SettingSet(bits_ & ~less.bits_); }

 private:
  explicit constexpr SettingSet(uint32_t bits) : bits_(bits) {}
  static constexpr uint32_t Bit(Setting setting) { return uint32_t{1} << static_cast<int>(setting); }

  uint32_t bits_ = 0;
};

struct SettingRow {
  Setting setting;
  std::string_view field;  // the field of Recipe; empty for a property of the model or of its processes
  std::string_view name;   // for messages
  std::string_view why;    // why some corrections and criteria do not accept it
  // Says if the options use it; null if a field always has a value, so that only the caller knows whether it was given.
  bool (*used)(const Recipe& recipe) = nullptr;
  // Gives the field its default; null if a sweep refuses the setting for a correction that does not accept it.
  void (*reset)(Recipe& recipe) = nullptr;
  bool reads_text = false;  // takes a pass over calibration text of its own, besides that for the sums
};
// In the order of the enumeration.
const std::vector<SettingRow>& Settings();
const SettingRow& RowOf(Setting setting);

// Two settings that exclude each other, and why. The field of `first` is at fault.
struct SettingConflict {
  Setting first, second;
  const char* why;
};
const std::vector<SettingConflict>& SettingConflicts();

// Throws UsageError with the field of `row`, or with `field` if it has none: `subject`, such as "the correction lra",
// does not accept the setting, and those named in `accepting` do.
[[noreturn]] void RefuseSetting(const SettingRow& row, const char* field, const std::string& subject,
                                const std::vector<std::string_view>& accepting);

}  // namespace shiftrt

// SPDX-License-Identifier: Apache-2.0
// Tables of settings. A row is a field of a struct: its name, its words and what reads them again. The settings of a
// training are in types/training.cc, those of suites in types/suites.cc, and those of a recipe, which name criteria and
// corrections, in shift/recipe_fields.cc.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/check.h"
#include "runtime/parse.h"

namespace shiftrt {

// The form of a setting's words. A list has commas between its parts, and kLines has line ends.
enum class FieldKind : uint8_t { kText, kFlag, kInteger, kNumber, kList, kLines, kFile };

template <typename Settings>
struct FieldRow {
  std::string_view name;
  FieldKind kind;
  std::string (*words)(const Settings& settings);
  void (*read)(std::string_view name, const std::string& words, Settings& settings);

  // Takes what `words` writes. Throws UsageError, as a rule with the name, for anything else.
  void set(const std::string& words, Settings& settings) const { read(name, words, settings); }
  // True for a setting that takes part in keys.
  bool decides() const { return true; }
};

// Says when a checkpoint and a saved model record a setting. Keys (runtime/work_key.h) have all that decide the result.
enum class Recorded : uint8_t {
  kNever,    // it does not decide the result
  kInText,   // the hash of the texts tells it
  kInSteps,  // the number of steps tells it, or the budget in seconds
  kAlways,
  kIfRead,  // the method reads it
  kIfOn,    // it is not the default
};

// The numbers that a setting may have, both ends included.
struct Bounds {
  double least, most;
  bool has(double value) const { return value >= least && value <= most; }
};

// A setting that a command may have as an option.
template <typename Settings>
struct OptionRow : FieldRow<Settings> {
  Recorded recorded;
  std::string_view help = {};         // for the option; empty: no command has one, or it sets other fields, too
  std::optional<Bounds> bounds = {};  // for numbers; the default may be outside
  unsigned read_by = ~0U;             // a bit for each value of an enumeration, such as Method, that reads the setting
  std::string_view choices = {};      // words of the option, with blanks between them; one that ends with ':' goes on
  std::string_view option = {};       // the name of the option and in records; empty: that of the field
  double unit = 1;                    // the option counts in units of so many

  bool decides() const { return recorded != Recorded::kNever; }
  bool has_reader(auto reader) const { return (read_by & (1U << static_cast<unsigned>(reader))) != 0; }
  std::string_view recorded_as() const { return option.empty() ? this->name : option; }
  // "--rank" for lora.rank
  std::string flag() const {
    std::string flag(recorded_as());
    std::replace(flag.begin(), flag.end(), '_', '-');
    return "--" + flag.substr(flag.rfind('.') + 1);
  }
};

template <typename Value>
constexpr FieldKind FieldKindOf() {
  return std::is_same_v<Value, bool>                       ? FieldKind::kFlag
         : std::is_integral_v<Value>                       ? FieldKind::kInteger
         : std::is_floating_point_v<Value>                 ? FieldKind::kNumber
         : std::is_same_v<Value, std::vector<std::string>> ? FieldKind::kList
         : std::is_same_v<Value, std::filesystem::path>    ? FieldKind::kFile
                                                           : FieldKind::kText;
}

// The words of a value. A type of the program has the function Name() or Format().
template <typename Value>
std::string FieldWords(const Value& value) {
  constexpr FieldKind kKind = FieldKindOf<Value>();
  if constexpr (kKind == FieldKind::kFlag)
    return value ? "true" : "false";
  else if constexpr (kKind == FieldKind::kList)
    return fmt::format("{}", fmt::join(value, ","));
  else if constexpr (std::is_arithmetic_v<Value>)
    return fmt::format("{}", value);
  else if constexpr (std::is_convertible_v<const Value&, std::string>)
    return value;
  else if constexpr (requires { Name(value); })
    return Name(value);
  else
    return Format(value);
}

// Reads a value of a type without a parser of its own. Throws UsageError with the name for other words.
template <typename Value>
void ReadField(std::string_view name, const std::string& words, Value& value) {
  constexpr FieldKind kKind = FieldKindOf<Value>();
  if constexpr (kKind == FieldKind::kFlag) {
    if (words != "true" && words != "false")
      FailUsage(Field(std::string(name)), "\"{}\" is neither true nor false", words);
    value = words == "true";
  } else if constexpr (std::is_arithmetic_v<Value>) {
    Value read = 0;
    if (!ParseNumber(words, &read))
      FailUsage(Field(std::string(name)), "\"{}\" is not a {}", words,
                kKind == FieldKind::kNumber ? "number"
                : std::is_unsigned_v<Value> ? "whole number from 0 on"
                                            : "whole number");
    value = read;
  } else if constexpr (kKind == FieldKind::kList) {
    value.clear();
    if (words.empty()) return;
    for (const std::string_view part : SplitCommas(words)) value.emplace_back(part);
  } else {
    value = words;
  }
}

template <typename Owner, typename Value>
Owner OwnerOf(Value Owner::*member);  // for decltype alone
template <auto kMember>
using OwnerOfMember = decltype(OwnerOf(kMember));

// settings.*kFirst.*kRest...
template <auto kFirst, auto... kRest>
auto& MemberOf(auto& settings) {
  return ((settings.*kFirst).*....*kRest);
}

// The row of a member, or of a member of this member, whose type needs no parser.
template <auto kFirst, auto... kRest>
constexpr auto MemberRow(std::string_view name) {
  using Settings = OwnerOfMember<kFirst>;
  using Value = std::remove_cvref_t<decltype(MemberOf<kFirst, kRest...>(std::declval<Settings&>()))>;
  return FieldRow<Settings>{name, FieldKindOf<Value>(),
                            [](const Settings& settings) { return FieldWords(MemberOf<kFirst, kRest...>(settings)); },
                            [](std::string_view field, const std::string& words, Settings& settings) {
                              ReadField(field, words, MemberOf<kFirst, kRest...>(settings));
                            }};
}

// A flag with two words of its own. It reads "true" and "false", too.
struct TwoWords {
  std::string_view off, on;
};
template <auto kMember, const TwoWords& kWords>
constexpr auto FlagRow(std::string_view name, FieldKind kind = FieldKind::kFlag) {
  using Settings = OwnerOfMember<kMember>;
  return FieldRow<Settings>{
      name, kind, [](const Settings& settings) { return std::string(settings.*kMember ? kWords.on : kWords.off); },
      [](std::string_view field, const std::string& words, Settings& settings) {
        if (words != kWords.off && words != kWords.on) return ReadField(field, words, settings.*kMember);
        settings.*kMember = words == kWords.on;
      }};
}

// The row of a member whose words a parser reads. The parser's error names the field.
template <auto kParse, auto kMember>
constexpr auto ParsedRow(std::string_view name) {
  using Settings = OwnerOfMember<kMember>;
  return FieldRow<Settings>{
      name, FieldKind::kText, [](const Settings& settings) { return FieldWords(settings.*kMember); },
      [](std::string_view, const std::string& words, Settings& settings) { settings.*kMember = kParse(words); }};
}

// The row of that name. Throws UsageError with the name for one that is not there; `whose` says of what it is no field.
template <typename Row>
const Row& FieldNamed(std::span<const Row> rows, std::string_view name, std::string_view whose) {
  std::string known;
  for (const Row& row : rows) {
    if (row.name == name) return row;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
  }
  FailUsage(Field(std::string(name)), "{} has no such field; it has {}", whose, known);
}

// Stands for a value of any type, to count the members of a struct without a constructor.
struct AnyValue {
  template <typename Value>
  operator Value() const;  // NOLINT(google-explicit-constructor): it initialises members
};
template <typename Settings, typename... Values>
consteval size_t MembersOf() {
  if constexpr (requires { Settings{Values{}..., AnyValue{}}; })
    return MembersOf<Settings, Values..., AnyValue>();
  else
    return sizeof...(Values);
}

}  // namespace shiftrt

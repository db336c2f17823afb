// SPDX-License-Identifier: Apache-2.0
#include "tools/fields.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <string_view>

#include "tools/find_option.h"
#include "tools/options.h"
#include "types/suites.h"
#include "types/training.h"

namespace shiftrt {

namespace {

// The fields that have the name of their option, but for a '_' in the place of a '-'.
constexpr std::string_view kOptions[] = {"base_model", "correction",   "device",   "export",   "format",       "gate",
                                         "heal",       "lambda",       "lora",     "memory",   "merge",        "model",
                                         "preset",     "products",     "protocol", "prune",    "quantize",     "recipe",
                                         "span",       "recover_text", "threads",  "revision", "penalize_bias"};

// The options of others but those of a training and of suites, which are in their tables. Where commands call a field
// differently, the first option that the command has is meant.
struct FieldFlag {
  std::string_view field, flag;
};
constexpr FieldFlag kFlags[] = {
    {"budget", "--recover"},
    {"calibration", "--calib"},
    {"factorization", "--factorize"},
    {"format", "--export"},
    {"gpus", "--device"},
    {"gram.all_layers", "--gram-layers"},
    {"gram.load", "--load-gram"},
    {"gram.save", "--save-gram"},
    {"loss", "--recover-loss"},
    {"mode", "--calibration-mode"},
    {"output", "--export"},
    {"output", "--save"},
    {"rank", "--lra"},
    {"rate", "--recover-rate"},
    {"suites", "--eval"},
    {"tasks", "--eval"},
    {"text", "--calib"},
    {"weighting", "--token-weight"},
};

std::string WithDashes(std::string_view field) {
  std::string flag = fmt::format("--{}", field);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

// The name of the option of `command` that sets a field of the library; "" if it has none.
std::string FlagOf(std::string_view field, const CLI::App& command) {
  if (std::find(std::begin(kOptions), std::end(kOptions), field) != std::end(kOptions)) {
    std::string flag = WithDashes(field);
    if (FindOption(command, flag) != nullptr) return flag;
  }
  for (const FieldFlag& known : kFlags)
    if (known.field == field && FindOption(command, known.flag) != nullptr) return std::string(known.flag);
  const auto find = [&](const auto& rows) -> std::string {
    for (const auto& row : rows)
      if (row.name == field && FindOption(command, row.flag()) != nullptr) return row.flag();
    return "";
  };
  const std::string flag = find(SuiteFields());
  return flag.empty() ? find(FinetuneFields()) : flag;
}

CLI::Validator CheckOf(FieldKind kind, const Bounds& bounds) {
  const auto& [least, most] = bounds;
  if (kind == FieldKind::kInteger) return CLI::Range(static_cast<int>(least), static_cast<int>(most));
  if (most < std::numeric_limits<double>::max()) return CLI::Range(least, most);
  return least == 0 ? FromZero() : AboveZero();
}

}  // namespace

std::string FlagNamed(std::string_view field) {
  for (const FieldFlag& known : kFlags)
    if (known.field == field) return std::string(known.flag);
  return WithDashes(field);
}

CLI::Option* AddField(FieldKind kind, const std::string& flag, const std::string& help, std::string& value,
                      CLI::App& app, const std::optional<Bounds>& bounds) {
  if (kind == FieldKind::kFlag)
    return app.add_flag_function(
        flag, [&value](int64_t times) { value = times > 0 ? "true" : "false"; }, help);
  if (kind == FieldKind::kList || kind == FieldKind::kLines) {
    const char* const between = kind == FieldKind::kList ? "," : "\n";
    const auto join = [&value, between](const std::vector<std::string>& parts) {
      value = fmt::format("{}", fmt::join(parts, between));
    };
    CLI::Option* const list = app.add_option_function<std::vector<std::string>>(flag, join, help);
    if (kind == FieldKind::kList) list->delimiter(',');
    return value.empty() ? list : list->default_str("[" + value + "]");
  }
  CLI::Option* const option = app.add_option(flag, value, help);
  if (kind == FieldKind::kInteger) option->type_name("INT");
  if (kind == FieldKind::kNumber) option->type_name("FLOAT");
  if (kind == FieldKind::kFile) option->check(FileOutput());
  if (bounds) option->check(CheckOf(kind, *bounds));
  return value.empty() ? option : option->default_str(value);
}

CLI::Option* OptionOf(std::string_view field, CLI::App& command) { return FindOption(command, FlagOf(field, command)); }

std::string Message(const UsageError& error, const CLI::App& command) {
  const std::string flag = FlagOf(error.field(), command);
  return flag.empty() ? error.what() : fmt::format("{}: {}", flag, error.reason());
}

}  // namespace shiftrt

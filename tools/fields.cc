// SPDX-License-Identifier: Apache-2.0
#include "tools/fields.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>

#include "tools/find_option.h"

namespace shiftrt {

namespace {

// The fields that have the name of their option, but for a '_' in the place of a '-'.
constexpr std::string_view kOptions[] = {
    "adapters",        "allow_code", "base_model",    "bos",         "budget",   "correction", "data",
    "device",          "export",     "format",        "gate",        "head",     "heal",       "keep_best",
    "keep_correction", "lambda",     "layers",        "lora",        "loss",     "memory",     "merge",
    "method",          "model",      "penalize_bias", "preset",      "products", "protocol",   "prune",
    "quantize",        "recipe",     "recover_text",  "replacement", "revision", "samples",    "schedule",
    "shots",           "span",       "steps",         "tasks",       "threads",  "warmup"};

// The options of the others. Where commands call a field differently, the first option that the command has is meant.
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
    {"lora.alpha", "--alpha"},
    {"lora.dropout", "--dropout"},
    {"lora.rank", "--rank"},
    {"lora.targets", "--targets"},
    {"loss", "--recover-loss"},
    {"mode", "--calibration-mode"},
    {"output", "--export"},
    {"output", "--save"},
    {"rank", "--lra"},
    {"rate", "--recover-rate"},
    {"suites", "--eval"},
    {"tasks", "--eval"},
    {"text", "--calib"},
    {"validation_text", "--validation"},
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
  return "";
}

}  // namespace

std::string FlagNamed(std::string_view field) {
  for (const FieldFlag& known : kFlags)
    if (known.field == field) return std::string(known.flag);
  return WithDashes(field);
}

CLI::Option* OptionOf(std::string_view field, CLI::App& command) { return FindOption(command, FlagOf(field, command)); }

std::string Message(const UsageError& error, const CLI::App& command) {
  const std::string flag = FlagOf(error.field(), command);
  return flag.empty() ? error.what() : fmt::format("{}: {}", flag, error.reason());
}

}  // namespace shiftrt

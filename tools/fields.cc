// SPDX-License-Identifier: Apache-2.0
#include "tools/fields.h"

#include <CLI/CLI.hpp>
#include <string_view>

#include "tools/find_option.h"

namespace shiftrt {

namespace {

// Where commands call a field differently, the first option that the command has is meant.
struct FieldFlag {
  std::string_view field, flag;
};
constexpr FieldFlag kFlags[] = {
    {"adapters", "--adapters"},
    {"base_model", "--base-model"},
    {"bos", "--bos"},
    {"budget", "--budget"},
    {"budget", "--recover"},
    {"calibration", "--calib"},
    {"correction", "--correction"},
    {"data", "--data"},
    {"device", "--device"},
    {"export", "--export"},
    {"factorization", "--factorize"},
    {"format", "--format"},
    {"format", "--export"},
    {"gate", "--gate"},
    {"gram.all_layers", "--gram-layers"},
    {"gram.load", "--load-gram"},
    {"gram.save", "--save-gram"},
    {"hardware", "--hardware"},
    {"heal", "--heal"},
    {"lambda", "--lambda"},
    {"memory", "--memory"},
    {"merge", "--merge"},
    {"layers", "--layers"},
    {"lora", "--lora"},
    {"lora.rank", "--rank"},
    {"lora.targets", "--targets"},
    {"loss", "--loss"},
    {"method", "--method"},
    {"keep_best", "--keep-best"},
    {"keep_correction", "--keep-correction"},
    {"mode", "--calibration-mode"},
    {"model", "--model"},
    {"output", "--export"},
    {"output", "--save"},
    {"penalize_bias", "--penalize-bias"},
    {"preset", "--preset"},
    {"protocol", "--protocol"},
    {"products", "--products"},
    {"prune", "--prune"},
    {"rank", "--lra"},
    {"samples", "--samples"},
    {"schedule", "--schedule"},
    {"shots", "--shots"},
    {"recipe", "--recipe"},
    {"revision", "--revision"},
    {"span", "--span"},
    {"steps", "--steps"},
    {"gpus", "--device"},
    {"suites", "--eval"},
    {"tasks", "--tasks"},
    {"tasks", "--eval"},
    {"threads", "--threads"},
    {"warmup", "--warmup"},
    {"weighting", "--token-weight"},
};

}  // namespace

CLI::Option* OptionOf(std::string_view field, CLI::App& command) {
  for (const FieldFlag& known : kFlags)
    if (known.field == field)
      if (CLI::Option* const option = FindOption(command, known.flag)) return option;
  return nullptr;
}

std::string Message(const UsageError& error, const CLI::App& command) {
  for (const FieldFlag& known : kFlags)
    if (known.field == error.field() && FindOption(command, known.flag) != nullptr)
      return fmt::format("{}: {}", known.flag, error.reason());
  return error.what();
}

}  // namespace shiftrt

// SPDX-License-Identifier: Apache-2.0
#include "tools/finetune_options.h"

#include <CLI/CLI.hpp>
#include <set>

#include "tools/fields.h"
#include "tools/options.h"
#include "tools/texts.h"

namespace shiftrt {

namespace {

// The words that the option has for a field of the settings; "" for a number that the option does not take.
std::string OptionWords(const FinetuneField& field, const FinetuneSettings& settings) {
  std::string words = field.words(settings);
  double number = 0;
  if (!ParseNumber(words, &number)) return words;
  if (field.bounds && !field.bounds->has(number)) return "";
  return field.unit == 1 ? words : fmt::format("{}", number / field.unit);
}

void SetFromOption(const FinetuneField& field, const std::string& words, FinetuneSettings& settings) {
  double number = 0;
  const bool converted = field.unit != 1 && ParseNumber(words, &number);
  field.set(converted ? fmt::format("{}", number * field.unit) : words, settings);
}

}  // namespace

void FinetuneOptions::AddTo(CLI::App& app) {
  for (const FinetuneField& field : FinetuneFields()) {
    if (field.help.empty()) continue;
    std::string& value = words[field.name] = OptionWords(field, FinetuneSettings());
    std::string help(field.help);
    if (field.name == "text") help += " " + std::string(kOwnTextHelp);
    if (field.name == "replacement") value = "block";  // the name of the default in the help
    CLI::Option* const option = AddField(field.kind, field.flag(), help, value, app, field.bounds);
    if (field.name == "adapters") option->check(CLI::IsMember(CLI::detail::split(std::string(field.choices), ' ')));
    given.emplace_back(&field, option);
  }
  app.get_option("--budget")->excludes(app.get_option("--epochs"))->excludes(app.get_option("--steps"));
}

void FinetuneOptions::TakePreset(const FinetunePreset& preset) {
  bool timed = false;  // a length that the user gives takes the place of the preset's, which stands last in the table
  for (const auto& [field, option] : given) {
    timed |= field->recorded == Recorded::kInSteps && option->count() > 0;
    if (option->count() > 0 || (timed && field->name == "budget")) continue;
    words[field->name] = field->name == "adapters" ? fmt::format("{}", fmt::join(preset.adapters, ","))
                                                   : OptionWords(*field, preset.settings);
  }
}

FinetuneSettings FinetuneOptions::Parse(uint64_t seed) const {
  const Method method = ParseMethod(words.at("method"));
  FinetuneSettings settings;
  for (const auto& [field, option] : given) {
    if (option->count() > 0) CheckGiven(method, field->name);
    const std::string& text = words.at(field->name);
    if (!text.empty() && field->name != "adapters") SetFromOption(*field, text, settings);
  }
  settings.seed = seed;
  return settings;
}

std::vector<std::string> FinetuneOptions::AdapterModes() const {
  std::vector<std::string> modes = CLI::detail::split(words.at("adapters"), ',');
  if (std::set(modes.begin(), modes.end()).size() < modes.size())
    FailUsage("--adapters {}: a word is given twice", words.at("adapters"));
  return modes;
}

}  // namespace shiftrt

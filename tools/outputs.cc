// SPDX-License-Identifier: Apache-2.0
#include "tools/outputs.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/model.h"
#include "runtime/check.h"
#include "runtime/checked_lines.h"
#include "runtime/files.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;

// A file or a directory that an option names.
struct NamedPath {
  std::string option;
  fs::path path;
  bool directory = false;  // an output that is a directory
};

constexpr std::string_view kModels[] = {"--model", "--original", "--with", "--lora"};
// The other options that name inputs. --compare of bench is not among them, because its file may be replaced.
constexpr std::string_view kInputs[] = {"--calib",        "--config", "--data",   "--load-gram", "--prompts",
                                        "--recover-text", "--text",   "--tokens", "--validation"};
// Options for which an empty text means something.
constexpr std::string_view kMayBeEmpty[] = {"--prompt", "--system"};

template <size_t N>
bool IsAmong(std::string_view word, const std::string_view (&words)[N]) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

// All options of a command, those in groups among them.
std::vector<CLI::Option*> OptionsOf(CLI::App& app) {
  std::vector<CLI::Option*> options = app.get_options();
  for (CLI::App* const group : app.get_subcommands({}))
    for (CLI::Option* const option : OptionsOf(*group)) options.push_back(option);
  return options;
}

bool HasValidator(CLI::Option& option, const std::string& name) {
  try {
    return option.get_validator(name) != nullptr;
  } catch (const CLI::OptionNotFound&) {
    return false;
  }
}

// The values that the user gave for the option, or else its default.
std::vector<std::string> GivenOrDefault(const CLI::Option& option) {
  if (option.count() > 0) return option.results();
  return {option.get_default_str()};
}

// Adds the files and directories that there are among the texts of an option's value: "c4.jsonl:256x512",
// "a.txt,b.txt", "own:prompts.txt:50%" or "piqa=valid.jsonl".
void AddInputs(const std::string& option, const std::string& value, std::vector<NamedPath>& inputs) {
  std::vector<std::string> names = {value};
  if (option != "--tokens")  // its commas stand between numbers, of which there may be many
    for (std::string& one : CLI::detail::split(value, ',')) names.push_back(std::move(one));
  constexpr std::string_view kOwn = "own:";
  for (size_t i = 0, count = names.size(); i < count; ++i)
    if (names[i].starts_with(kOwn)) names.push_back(names[i].substr(kOwn.size()));
  for (const std::string& name : names)
    for (const std::string& path : {name, name.substr(0, name.rfind(':')), name.substr(name.find('=') + 1)}) {
      std::error_code none;
      if (fs::exists(path, none) && !IsStream(path)) inputs.push_back({option, path});
    }
}

void AddModel(const std::string& option, const std::string& value, std::vector<NamedPath>& inputs) {
  try {
    inputs.push_back({option, fs::is_directory(value) ? fs::path(value) : ResolveModel(value)});
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception&) {  // the command says that there is no such model, or pulls it
  }
}

// True for the name of a file that belongs to a model. A directory may have reports next to them.
bool IsOfModel(const fs::path& file) {
  constexpr std::string_view kNames[] = {
      "README.md",           "adapter_config.json", "added_tokens.json",      "calibration.txt",
      "chat_template.jinja", "config.json",         "generation_config.json", "heldout.txt",
      "merges.txt",          "shiftrt.json",        "chat_template.json",     "special_tokens_map.json",
      "tokenizer.json",      "tokenizer.model",     "tokenizer_config.json",  "vocab.json"};
  constexpr std::string_view kWeights[] = {"adapter", "consolidated", "model", "own.", "pytorch_model"};
  const std::string name = file.filename().string(), extension = file.extension().string();
  if (IsAmong(name, kNames) || extension == ".gguf" || name.ends_with(".index.json")) return true;
  return (extension == ".safetensors" || extension == ".bin") &&
         std::any_of(std::begin(kWeights), std::end(kWeights),
                     [&](std::string_view begin) { return name.starts_with(begin); });
}

bool Same(const fs::path& a, const fs::path& b) {
  std::error_code none;
  return fs::equivalent(a, b, none) || WholePath(a) == WholePath(b);
}

// True for an existing file of the model in `directory`. The file may be a link to one elsewhere, as in a cache.
bool IsFileOf(const fs::path& directory, const fs::path& file) {
  std::error_code none;
  if (!IsOfModel(file) || !fs::exists(file, none) || !fs::is_directory(directory, none)) return false;
  const fs::path below = WholePath(fs::absolute(file).parent_path()).lexically_relative(WholePath(directory));
  return !below.empty() && *below.begin() != "..";
}

void RefuseEmpty(const std::vector<CLI::Option*>& options) {
  for (const CLI::Option* const option : options) {
    if (option->count() == 0 || option->get_lnames().empty() || IsAmong(option->get_name(), kMayBeEmpty)) continue;
    const std::vector<std::string>& values = option->results();
    if (std::find(values.begin(), values.end(), "") != values.end())
      FailUsage("{}: its value is empty", option->get_name());
  }
}

}  // namespace

bool CheckPaths(CLI::App& command) {
  const std::vector<CLI::Option*> options = OptionsOf(command);
  RefuseEmpty(options);
  bool named = false;
  std::vector<NamedPath> outputs, inputs;
  std::vector<std::pair<std::string, std::string>> models;
  for (CLI::Option* const option : options) {
    const std::string name = option->get_name();
    const bool directory = HasValidator(*option, kDirectoryOutput), file = HasValidator(*option, kFileOutput);
    named = named || (option->count() > 0 && (directory || file || name == "--export"));
    for (const std::string& value : GivenOrDefault(*option)) {
      if (value.empty()) continue;
      if ((directory || file) && !IsStream(value)) outputs.push_back({name, value, directory});
      if (name == "--export") outputs.push_back({name, value.substr(value.find(':') + 1), true});
      if (IsAmong(name, kModels)) models.emplace_back(name, value);
      if (IsAmong(name, kInputs)) AddInputs(name, value, inputs);
    }
  }
  if (outputs.empty()) return named;
  for (const auto& [option, value] : models) AddModel(option, value, inputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto& [name, path, directory] = outputs[i];
    for (size_t j = 0; j < i; ++j)
      if (!(directory && outputs[j].directory) && Same(path, outputs[j].path))
        FailUsage("{} {}: {} writes to the same place; give each a name of its own", name, path.string(),
                  outputs[j].option);
    if (directory) continue;  // the commands check what is in it
    for (const NamedPath& input : inputs) {
      if (Same(path, input.path))
        FailUsage("{} {}: this is the file of {}, which would be replaced; write to another file", name, path.string(),
                  input.option);
      if (IsFileOf(input.path, path))
        FailUsage("{} {}: this file belongs to the model of {} and would be replaced; write to another file", name,
                  path.string(), input.option);
    }
  }
  return named;
}

fs::path WholePath(const fs::path& path) {
  if (path.empty()) return path;
  std::error_code error;
  const fs::path plain = fs::absolute(path).lexically_normal(), followed = fs::weakly_canonical(plain, error);
  return WithName(error ? plain : followed);
}

std::string NameOfDirectory(const fs::path& directory) { return WithName(directory).filename().string(); }

fs::path CheckpointFor(const fs::path& directory) { return WithName(directory).string() + ".checkpoint"; }

bool MayBeJournal(const fs::path& file) {
  constexpr size_t kDigits = 16;  // each line begins with a checksum of this length
  std::error_code none;
  if (!fs::is_regular_file(file, none)) return true;  // the journal says what is wrong with it
  if (!ReadCheckedLines(file).texts.empty()) return true;
  const std::string text = ReadFile(file);  // a program may have been killed in its first line
  return text.empty() || (text.find_first_not_of("0123456789abcdef") == kDigits && text[kDigits] == ' ');
}

}  // namespace shiftrt

// SPDX-License-Identifier: Apache-2.0
#include "tools/help.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tools/color.h"
#include "tools/find_option.h"

namespace shiftrt {

namespace {

struct CommandRow {
  const char *command, *options;
};
// The options that --help of a command shows. A command that is not here shows all.
constexpr CommandRow kFirst[] = {
    {"run", "--model --prune --recipe --correction --lra --calib --text --save --export --report"},
    {"sweep", "--model --preset --prune --correction --lra --calib --text --eval --csv --report"},
    {"finetune", "--model --method --calib --steps --rate --rank --adapters --text --save --report"},
    {"eval", "--model --tasks --data --limit --shots --with --variants --prune --items --json"},
    {"generate", "--model --prompt --prompts --chat --system --max-tokens --temperature --top-p --seed --lora"},
};

struct GroupRow {
  const char *title, *options;
  const char* command = nullptr;  // the only one whose options these are; null: all
};
// The first row that has an option decides.
constexpr GroupRow kGroups[] = {
    {"Many prompts", "--prompts --batch --limit --prompt-tokens --out", "generate"},
    {"Generated text", "--prompts --limit --batch", "compare"},
    {"Model", "--with", "compare"},
    {"Probes", "--probes --probe-items --probe-tokens --seed", "compare"},
    {"Training", "--preset", "finetune"},
    {"Machine", "--memory", "finetune"},
    {"Model", "--model --against --offline --lora --dtype --check-weights"},
    {"Layers and their repair",
     "--recipe --prune --yes --correction --lra --calibration-mode --token-weight --heal --span --gate --no-gate "
     "--lambda "
     "--penalize-bias --factorize --merge --quantize --preset --seeds"},
    {"Training",
     "--method --adapters --head --targets --rank --alpha --dropout --layers --replacement --keep-correction --loss "
     "--epochs --steps --batch --pass-tokens --rate --schedule --warmup --weight-decay --clip --validate-every "
     "--checkpoint --checkpoint-minutes --budget --keep-best --recover --recover-text --recover-loss "
     "--recover-rate"},
    {"Texts", "--calib --samples --length --divide --validation --train-on-inputs --text --text-tokens --protocol"},
    {"Calibration sums", "--save-gram --gram-layers --load-gram --memory"},
    {"Zero-shot suites",
     "--tasks --eval --data --shots --limit --allow-code --bos --metrics --items --journal --variants --with "
     "--original"},
    {"Generated text", "--prompt --chat --system --max-tokens --temperature --top-p --top-k"},
    {"Results",
     "--save --save-weights --merge-lora --export --shard-size --base-model --report --json --csv --markdown --quiet"},
    {"Machine", "--device --threads --products --split --seed"},
    {"Dry run", "--dry-run --config"},
};

constexpr const char* kOtherOptions = "Other options";
constexpr size_t kExamples = 3;  // the short help shows so many

std::vector<std::string> WordsIn(const char* text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

const CommandRow* FirstOptions(const CLI::App& command) {
  const auto row = std::ranges::find(kFirst, command.get_name(), [](const CommandRow& one) { return one.command; });
  return row == std::end(kFirst) ? nullptr : row;
}

// " DIR", " {a,b}=a" or " TEXT=demo": without the bounds of numbers and the options that an option needs or excludes.
std::string TypeAndDefault(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return "";
  const std::string type = option.get_type_name(), base = type.substr(0, type.find(':'));
  const std::string check = type.substr(std::min(type.size(), base.size() + 1));
  const bool shown = check == "DIR" || check == "FILE" || check.starts_with("{");
  const std::string standard = option.get_default_str();
  return fmt::format(" {}{}{}", shown ? check : base, standard.empty() ? "" : "=", standard);
}

// The first sentence of a description. If it introduces a list of a line each, the names of the list follow it.
std::string FirstSentence(const std::string& description) {
  const size_t list = description.find(":\n"), end = description.find(". ");
  if (end < list) return description.substr(0, end);
  if (list == std::string::npos) return description;
  std::vector<std::string> names;
  std::istringstream lines(description.substr(list + 2));
  for (std::string line; std::getline(lines, line);)
    if (!line.empty() && line[0] != ' ') names.push_back(line.substr(0, line.find(' ')));
  return description.substr(0, list + 2) + InLines(names);
}

// The footer from the line of examples to the last one that the short help shows.
std::string FirstExamples(const std::string& footer) {
  const size_t begin = footer.find("Example");
  if (begin == std::string::npos) return "";
  size_t end = footer.find('\n', begin);
  for (size_t i = 0; i < kExamples && end != std::string::npos; ++i) end = footer.find('\n', end + 1);
  return footer.substr(begin, end - begin) + "\n";
}

// Headings, which begin a line and end with a colon, and the names of options in the colours of a terminal.
std::string Colored(const std::string& help) {
  std::istringstream lines(help);
  std::string colored;
  for (std::string line; std::getline(lines, line);) {
    const size_t indent = line.find_first_not_of(' '), colon = line.find(':');
    if (indent == 0 && colon != std::string::npos && (colon + 1 == line.size() || line.starts_with("Usage:"))) {
      colored += Painted(line.substr(0, colon + 1), Paint::kBold) + line.substr(colon + 1);
    } else if (indent != std::string::npos && indent > 0 && indent <= 4 && line[indent] == '-') {
      const size_t end = std::min(line.find(' ', indent), line.size());
      colored += line.substr(0, indent) + Painted(line.substr(indent, end - indent), Paint::kOption) + line.substr(end);
    } else {
      colored += line;
    }
    colored += '\n';
  }
  return colored;
}

class HelpForm : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    const CommandRow* const first = FirstOptions(*app);
    const std::string help =
        first != nullptr && mode == CLI::AppFormatMode::Normal
            ? Short(*app, name, *first)
            : CLI::detail::find_and_replace(CLI::Formatter::make_help(app, name, mode), "\n\n\n", "\n\n");
    return mode != CLI::AppFormatMode::Sub && ShowsColors(STDOUT_FILENO) ? Colored(help) : help;
  }

  // A group of options in a command is a group as the others are.
  std::string make_expanded(const CLI::App* group) const override {
    if (!group->get_name().empty()) return CLI::Formatter::make_expanded(group);
    std::string help = fmt::format("\n{} ({}):\n", group->get_group(), group->get_description());
    for (const CLI::Option* option : group->get_options())
      if (option != group->get_help_ptr() && option != group->get_help_all_ptr()) help += make_option(option, false);
    return help;
  }

 private:
  std::string Short(const CLI::App& command, const std::string& name, const CommandRow& first) const {
    std::string help = make_description(&command) + make_usage(&command, name) + "\nOptions used first:\n";
    for (const std::string& option : WordsIn(first.options)) {
      const CLI::Option* const one = command.get_option(option);
      std::ostringstream line;
      CLI::detail::format_help(line, make_option_name(one, false) + TypeAndDefault(*one),
                               FirstSentence(one->get_description()), get_column_width());
      help += line.str();
    }
    return help + fmt::format("\n{}\nAll options in groups, and more examples: shiftrt {} --help-all\n",
                              FirstExamples(command.get_footer()), command.get_name());
  }
};

}  // namespace

std::string InLines(const std::vector<std::string>& words) {
  constexpr size_t kWidth = 88;
  std::string text;
  size_t begin = 0;  // beginning of the last line
  for (const std::string& word : words) {
    if (!text.empty()) text += text.size() - begin + word.size() > kWidth ? ",\n" : ", ";
    if (text.ends_with('\n')) begin = text.size();
    text += word;
  }
  return text;
}

void ShapeHelp(CLI::App& app) {
  app.formatter(std::make_shared<HelpForm>());
  app.set_help_flag("-h,--help", "print the options that are used first and exit");
  app.set_help_all_flag("--help-all", "print all options in groups and exit");
}

void GroupOptions(CLI::App& command) {
  if (FirstOptions(command) == nullptr) return;
  for (CLI::Option* option : command.get_options())
    if (option->get_group() == "Options" && option != command.get_help_ptr() && option != command.get_help_all_ptr())
      option->group(kOtherOptions);
  for (const GroupRow& group : kGroups) {
    if (group.command != nullptr && command.get_name() != group.command) continue;
    for (const std::string& name : WordsIn(group.options))
      if (CLI::Option* option = FindOption(command, name); option != nullptr && option->get_group() == kOtherOptions)
        option->group(group.title);
  }
}

}  // namespace shiftrt

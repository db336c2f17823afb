// SPDX-License-Identifier: Apache-2.0
#include "tools/completion.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <string_view>

#include "eval/task.h"
#include "export/formats.h"
#include "shift/corrections/corrections.h"
#include "shift/criteria/criteria.h"
#include "shiftrt/pull.h"
#include "text/documents.h"
#include "tools/find_option.h"
#include "tools/options.h"
#include "tools/paper/finetuning.h"
#include "tools/paper/paper.h"
#include "types/training.h"

namespace shiftrt {

namespace {

// Words of options that no other table of the program lists; a word that ends with ':' goes on.
// tests/tools/help_cli_test.cc compares them with the parser.
struct FixedWords {
  const char *option, *words;
};
constexpr FixedWords kFixed[] = {
    {"calibration-mode", "auto independent sequential drift"},
    {"device", "auto cpu cuda cuda:all"},
    {"factorize", "rrr svd svd-refit"},
    {"heal", "off down all"},
    {"lambda", "gcv holdout"},
    {"lra", "full energy: budget:"},
    {"merge", "off full lowrank"},
    {"quantize", "off q8_0 q6_k q5_k_m q4_k_m q4_0 q3_k_m q2_k"},
    {"protocol", "gptq seq128"},
    {"recover-loss", "ce kl both"},
    {"split", "auto"},
    {"token-weight", "none norm first: massive:"},
};

bool IsOneOf(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string FirstLine(const std::string& text) { return text.substr(0, std::min(text.find('\n'), text.find(". "))); }

// Names and summaries of the rows of a table of the program.
template <typename Rows>
void AddNamed(const Rows& rows, const char* suffix, std::vector<Candidate>& found) {
  for (const auto& row : rows)
    found.push_back({std::string(row.name) + suffix, "", FirstLine(std::string(row.summary))});
}

void AddWords(const std::vector<std::string>& words, std::vector<Candidate>& found) {
  for (const std::string& word : words) found.push_back({word, "", ""});
}

// The words of {a,b,c} in the type of an option, where the parser's own check puts them.
std::vector<std::string> CheckedWords(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t open = type.find('{'), close = type.find('}');
  if (open == std::string::npos || close == std::string::npos) return {};
  return CLI::detail::split(type.substr(open + 1, close - open - 1), ',');
}

// The values of an option, or of an argument without a name. `begun`: something of the value is there already, so that
// names are offered where a file may stand, too.
std::vector<Candidate> ValuesOf(const CLI::App& command, const CLI::Option& option, bool begun) {
  std::vector<Candidate> found;
  const std::string name = option.get_lnames().empty() ? "" : option.get_lnames().front();
  AddWords(CheckedWords(option), found);
  if (!found.empty()) return found;
  for (const FixedWords& fixed : kFixed)
    if (name == fixed.option) AddWords(CLI::detail::split(fixed.words, ' '), found);
  for (const FinetuneField& field : FinetuneFields())
    if ("--" + name == field.flag() && !field.choices.empty())
      AddWords(CLI::detail::split(std::string(field.choices), ' '), found);
  if (name == "prune") {
    AddNamed(Criteria(), ":", found);
    found.push_back({"layers=", "", "these layers"});
  } else if (name == "correction") {
    AddNamed(Corrections(), "", found);
  } else if (name == "recipe") {
    AddNamed(NamedRecipes(), "", found);
  } else if (name == "export") {
    AddNamed(ExportFormats(), ":", found);
  } else if (name == "preset") {
    command.get_name() == "sweep" ? AddNamed(Presets(), "", found) : AddNamed(FinetunePresets(), "", found);
  } else if (IsOneOf(name, {"tasks", "eval"})) {
    AddWords({"paper7", "small4", "all"}, found);
    for (const Task& task : Tasks()) found.push_back({task.name, "", task.title});
  } else if (name == "model" && begun) {
    AddWords({"demo"}, found);
    AddWords(KnownModelNames(), found);
  } else if (IsOneOf(name, {"calib", "recover-text", "text"}) && begun) {
    for (const KnownText& text : KnownTexts()) AddWords({std::string(text.name)}, found);
    if (name == "recover-text" || (name == "calib" && command.get_name() == "finetune"))
      AddWords({"own", "own:"}, found);
  } else if (command.get_name() == "pull" && name.empty()) {
    AddWords(KnownModelNames(), found);
    AddWords(KnownDatasetNames(), found);
  }
  return found;
}

// The options of a command and of its groups of options, without those that --help does not show.
void AddOptions(const CLI::App& command, std::vector<Candidate>& found) {
  const bool group_alone = command.get_name().empty() && command.get_parent() != nullptr;
  for (const CLI::Option* option : command.get_options())
    if (!option->get_group().empty() &&
        !(group_alone && (option == command.get_help_ptr() || option == command.get_help_all_ptr())))
      for (const std::string& name : option->get_lnames())
        found.push_back({"--" + name, group_alone ? command.get_group() : option->get_group(),
                         FirstLine(option->get_description())});
  for (const CLI::App* group : command.get_subcommands({}))
    if (group->get_name().empty()) AddOptions(*group, found);
}

// Bash makes words of their own of ':' and '='. Joins them with their neighbours, and returns how many letters of the
// last word are before the one that bash completes.
size_t JoinWords(std::vector<std::string>& words) {
  std::vector<std::string> joined;
  size_t before = 0;
  bool open = false;  // the last word goes on
  for (const std::string& word : words) {
    const bool separator = word == ":" || word == "=";
    if ((separator || open) && joined.size() > 1) {
      before = joined.back().size() + (separator ? 1 : 0);
      joined.back() += word;
    } else {
      before = 0;
      joined.push_back(word);
    }
    open = separator;
  }
  words = joined;
  return before;
}

}  // namespace

std::vector<Candidate> Complete(const CLI::App& app, std::vector<std::string> words) {
  const size_t before = JoinWords(words);
  if (!words.empty() && std::filesystem::path(words[0]).filename() == "shiftrt-eval")
    words.insert(words.begin() + 1, "eval");
  if (words.size() < 2) return {};
  std::string current = words.back();
  std::vector<Candidate> found;
  std::string group, prefix;
  if (words.size() == 2) {
    for (const CLI::App* command : app.get_subcommands({}))
      found.push_back({command->get_name(), "commands", command->get_description()});
    if (current.starts_with("-")) AddOptions(app, found);
  } else {
    const auto commands = app.get_subcommands([&](const CLI::App* one) { return one->get_name() == words[1]; });
    if (commands.empty()) return {};
    const CLI::App* const command = commands.front();
    const CLI::Option* option = nullptr;
    if (const size_t equals = current.find('='); current.starts_with("--") && equals != std::string::npos) {
      option = FindOption(*command, current.substr(0, equals));
      prefix = current.substr(0, equals + 1);
      current = current.substr(equals + 1);
    } else if (current.starts_with("-")) {
      AddOptions(*command, found);
    } else {
      const std::string& previous = words[words.size() - 2];
      if (previous.starts_with("-")) option = FindOption(*command, previous);
      if (option == nullptr || option->get_items_expected_max() == 0) {
        const auto arguments = command->get_options([](const CLI::Option* one) { return one->get_positional(); });
        option = arguments.empty() ? nullptr : arguments.front();
      }
    }
    if (option != nullptr && found.empty()) {
      found = ValuesOf(*command, *option, !current.empty());
      group = "values of " + option->get_name();
      const bool list = option->get_delimiter() != '\0' || option->check_lname("tasks") ||
                        option->check_lname("eval") || option->check_lname("token-weight") ||
                        option->check_lname("calib") || option->check_lname("recover-text");
      if (const size_t comma = current.rfind(','); list && comma != std::string::npos) {
        prefix += current.substr(0, comma + 1);
        current = current.substr(comma + 1);
      }
    }
  }
  std::erase_if(found, [&](const Candidate& one) { return !one.word.starts_with(current); });
  for (Candidate& one : found) {
    one.word = (prefix + one.word).substr(before);  // `current`, with the prefix, has it too
    if (one.group.empty()) one.group = group;
  }
  std::erase_if(found, [](const Candidate& one) { return one.word.empty(); });
  return found;
}

namespace {

constexpr const char* kBash = R"(# Completion of shiftrt for bash, also by `source <(shiftrt completion bash)`.
_shiftrt() {
  local word rest
  COMPREPLY=()
  while IFS=$'\t' read -r word rest; do
    COMPREPLY+=("$word")
  done < <("${COMP_WORDS[0]%-eval}" completion -- "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2>/dev/null)
  if [ "${#COMPREPLY[@]}" -eq 1 ] && [[ ${COMPREPLY[0]} == *[:=] ]]; then compopt -o nospace 2>/dev/null || true; fi
}
# Where it has nothing to offer, bash completes the names of files.
complete -o default -F _shiftrt shiftrt shiftrt-eval
)";

constexpr const char* kZsh = R"(#compdef shiftrt shiftrt-eval
# Completion of shiftrt for zsh, also by `source <(shiftrt completion zsh)`.
_shiftrt() {
  local word group summary key
  local -a order list
  local -A found
  while IFS=$'\t' read -r word group summary; do
    # Words that go on, which no blank follows, are a list of their own.
    key=$group
    [[ $word != *[:=] ]] || key="$group, "
    (( ${+found[$key]} )) || order+=("$key")
    found[$key]+="${word//:/\\:}:$summary"$'\n'
  done < <("${words[1]%-eval}" completion -- "${(@)words[1,CURRENT]}" 2>/dev/null)
  (( ${#order} )) || { _files; return }
  for key in "${order[@]}"; do
    list=("${(@f)${found[$key]%$'\n'}}")
    if [[ $key == *', ' ]]; then _describe "${key%, }" list -S ''; else _describe "$key" list; fi
  done
}
if [ "$funcstack[1]" = _shiftrt ]; then _shiftrt "$@"; else compdef _shiftrt shiftrt shiftrt-eval; fi
)";

constexpr const char* kFish = R"(# Completion of shiftrt for fish, also by `shiftrt completion fish | source`.
function __shiftrt_find
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program (string replace -r -- '-eval$' '' $words[1])
    set -g __shiftrt_found (command $program completion -- $words "$current" 2>/dev/null | string replace -r -- '\t.*\t' '\t')
    test (count $__shiftrt_found) -gt 0
end
# Where it has nothing to offer, fish completes the names of files.
complete -c shiftrt -n __shiftrt_find -f -a '$__shiftrt_found'
complete -c shiftrt-eval -n __shiftrt_find -f -a '$__shiftrt_found'
)";

}  // namespace

Command AddCompletion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  app.add_option("shell", *shell, "the shell whose script is printed")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  app.footer(
      "Examples:\n  source <(shiftrt completion bash)\n  shiftrt completion zsh > ~/.zfunc/_shiftrt\n"
      "  shiftrt completion fish > ~/.config/fish/completions/shiftrt.fish");
  return [shell] {
    fmt::print("{}", *shell == "bash" ? kBash : *shell == "zsh" ? kZsh : kFish);
    return 0;
  };
}

}  // namespace shiftrt

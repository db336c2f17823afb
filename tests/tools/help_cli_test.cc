// SPDX-License-Identifier: Apache-2.0
// Tests of the help, its colours, completion, and the names of options.
#include <fcntl.h>

#include <cstdlib>
#include <map>
#include <set>

#include "tests/tools/cli.h"

namespace shiftrt {
namespace {

// The names of the options that begin a line of a help text.
std::set<std::string> OptionsIn(const std::string& help) {
  std::set<std::string> names;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find_first_not_of(' '), name = line.find("--");
    if (begin == std::string::npos || begin == 0 || begin > 4 || line[begin] != '-' || name == std::string::npos)
      continue;
    names.insert(line.substr(name, line.find_first_of(" ,=[", name) - name));
  }
  return names;
}

// Returns the text that the program writes if its standard output is a terminal.
std::string OnTerminal(const std::vector<std::string>& arguments) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || ::grantpt(terminal) != 0 || ::unlockpt(terminal) != 0) return "no terminal";
  const pid_t child = Start(arguments, ::ptsname(terminal), "/dev/null");
  std::string text;
  char part[4096];
  for (ssize_t count = 0; (count = ::read(terminal, part, sizeof part)) > 0;) text.append(part, count);
  Wait(child);
  ::close(terminal);
  return text;
}

TEST_F(Cli, HelpShowsTheOptionsUsedFirstAndHelpAllShowsAllInGroups) {
  for (const char* command : {"run", "sweep", "finetune", "eval", "generate"}) {
    const std::string brief = Call({command, "--help"}).out, all = Call({command, "--help-all"}).out;
    const std::set<std::string> first = OptionsIn(brief), every = OptionsIn(all);
    EXPECT_EQ(first.size(), 10u) << brief;
    EXPECT_TRUE(std::includes(every.begin(), every.end(), first.begin(), first.end())) << command;
    EXPECT_GT(every.size(), first.size() + 5) << command;
    EXPECT_LE(std::count(brief.begin(), brief.end(), '\n'), 45) << brief;
    EXPECT_NE(brief.find(std::string("shiftrt ") + command + " --help-all"), std::string::npos) << brief;
    EXPECT_NE(brief.find("Examples:"), std::string::npos) << brief;
    EXPECT_NE(all.find("\nModel:\n"), std::string::npos) << all;
    EXPECT_EQ(all.find("Other options"), std::string::npos) << all;
  }
  const std::string all = Call({"run", "--help-all"}).out;
  for (const char* text : {"\nLayers and their repair:\n", "\nDry run:\n", "--token-weight", "streamline", "mpirun"})
    EXPECT_NE(all.find(text), std::string::npos) << text;
  EXPECT_NE(Call({"run", "--help"}).out.find("joint"), std::string::npos) << "the names of the corrections";
}

TEST_F(Cli, HelpHasColorsOnATerminalAlone) {
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "xterm", 1);
  const std::string colored = OnTerminal({"run", "--help"});
  EXPECT_NE(colored.find("\033[1mUsage:\033[0m"), std::string::npos) << colored;
  EXPECT_NE(colored.find("\033[36m--prune\033[0m"), std::string::npos) << colored;
  EXPECT_EQ(Call({"run", "--help"}).out.find('\033'), std::string::npos);
  ::setenv("TERM", "dumb", 1);
  EXPECT_EQ(OnTerminal({"run", "--help"}).find('\033'), std::string::npos);
  ::setenv("TERM", "xterm", 1);
  ::setenv("NO_COLOR", "1", 1);
  const std::string plain = OnTerminal({"run", "--help"});
  EXPECT_NE(plain.find("--prune"), std::string::npos);
  EXPECT_EQ(plain.find('\033'), std::string::npos);
  ::unsetenv("NO_COLOR");
}

class Completion : public Cli {
 protected:
  // The words that the last one may become, and the group of each.
  std::map<std::string, std::string> Complete(const std::vector<std::string>& words) const {
    std::vector<std::string> arguments = {"completion", "--", "shiftrt"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    std::map<std::string, std::string> found;
    std::istringstream lines(Call(arguments).out);
    for (std::string line; std::getline(lines, line);) {
      const size_t tab = line.find('\t');
      found[line.substr(0, tab)] = line.substr(tab + 1, line.find('\t', tab + 1) - tab - 1);
    }
    return found;
  }
  std::string Words(const std::vector<std::string>& words) const {
    std::string text;
    for (const auto& [word, group] : Complete(words)) text += (text.empty() ? "" : " ") + word;
    return text;
  }
};

TEST_F(Completion, KnowsCommandsOptionsAndTheirGroups) {
  EXPECT_EQ(Words({"gen"}), "generate");
  EXPECT_EQ(Words({"run", "--gram"}), "--gram-layers");
  EXPECT_EQ(Complete({"run", "--lamb"})["--lambda"], "Layers and their repair");
  EXPECT_EQ(Complete({"eval", "--pru"})["--prune"], "Recipe") << "an option of a group of options";
  EXPECT_EQ(Words({"finetune", "--spl"}), "") << "an option that the help does not show";
  EXPECT_EQ(OptionsIn(Call({"run", "--help-all"}).out).size(), Complete({"run", "--"}).size());
}

TEST_F(Completion, KnowsValues) {
  EXPECT_EQ(Words({"run", "--correction", "jo"}), "joint");
  EXPECT_EQ(Words({"run", "--correction=jo"}), "--correction=joint");
  EXPECT_EQ(Words({"run", "--correction", "=", "jo"}), "joint") << "as bash divides words";
  EXPECT_EQ(Words({"run", "--prune", "str"}), "streamline:");
  EXPECT_EQ(Words({"run", "--prune", "bi", ":", ""}), "frobenius:");
  EXPECT_EQ(Words({"run", "--export", "hf"}), "hf-lra: hf:");
  EXPECT_EQ(Words({"run", "--gram-layers", ""}), "all removed") << "from the check of the parser";
  EXPECT_EQ(Words({"eval", "--tasks", "boolq,pi"}), "boolq,piqa");
  EXPECT_EQ(Words({"sweep", "--correction", "lra,ref"}), "lra,refit");
  EXPECT_EQ(Words({"sweep", "--preset", "paper-table1"}), "paper-table1");
  EXPECT_EQ(Words({"finetune", "--preset", "paper-lo"}), "paper-lora");
  EXPECT_EQ(Words({"ppl", "--protocol", ""}), "gptq harness seq128");
  EXPECT_EQ(Words({"run", "--model", "smollm2-1.7b-"}), "smollm2-1.7b-instruct");
  EXPECT_EQ(Words({"run", "--model", ""}), "") << "files";
  EXPECT_EQ(Words({"run", "--calib", "al"}), "alpaca");
  EXPECT_EQ(Words({"run", "--recover-text", "ow"}), "own own:");
  EXPECT_EQ(Words({"finetune", "--calib", "own,al"}), "own,alpaca");
  EXPECT_EQ(Words({"run", "--calib", "ow"}), "") << "no text of a fit";
  EXPECT_EQ(Words({"run", "--seed", ""}), "");
  EXPECT_EQ(Words({"completion", "z"}), "zsh");
  EXPECT_EQ(Words({"frobnicate", "--a"}), "");
}

// Every value that is offered is one that the parser accepts: the command gets as far as opening the model.
TEST_F(Completion, OffersOnlyWhatTheParserTakes) {
  const std::pair<const char*, std::vector<const char*>> options[] = {
      {"run",
       {"--calibration-mode", "--correction", "--factorize", "--heal", "--lambda", "--lra", "--merge", "--recipe",
        "--token-weight"}},
      {"finetune", {"--layers", "--loss", "--method", "--schedule", "--adapters"}}};
  int tried = 0;
  for (const auto& [command, names] : options)
    for (const std::string name : names)
      for (const auto& [value, group] : Complete({command, name, ""})) {
        if (value.back() == ':') continue;
        std::vector<std::string> arguments = {command, "--model", "no-such-model", name, value};
        if (std::string(command) == "finetune") {
          arguments.insert(arguments.end(), {"--save", Path("tuned")});
          if (name == "--layers") arguments.insert(arguments.end(), {"--method", "partial"});
        }
        const Outcome outcome = Call(arguments);
        // Words that do not go together are refused after they were understood.
        EXPECT_TRUE(outcome.status == 1 ? outcome.err.find("no-such-model") != std::string::npos
                                        : outcome.err.find("known") == std::string::npos)
            << name << " " << value << ": " << outcome.err;
        ++tried;
      }
  EXPECT_GT(tried, 40);
  for (const auto& [value, group] : Complete({"run", "--protocol", ""}))
    EXPECT_EQ(Run({"--protocol", value}).status, 0) << value;
}

// Whatever the name under which the program was started.
TEST_F(Cli, UsageNamesTheProgram) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{}, {"--help"}})
    EXPECT_NE(Call(words).out.find("Usage: shiftrt [OPTIONS] SUBCOMMAND"), std::string::npos) << Call(words).out;
  EXPECT_NE(Call({"run", "--help"}).out.find("Usage: shiftrt run [OPTIONS]"), std::string::npos);
}

TEST_F(Cli, WhatTheParserRefusesNamesTheHelpOfTheCommand) {
  const Outcome outcome = Call({"export", "--model", Path("model"), "--save", Path("out")});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err, "shiftrt: --save requires --format; see `shiftrt export --help`\n");
}

TEST_F(Cli, AModelThatIsNotThereIsSaidInOneLine) {
  for (const char* path : {"no/such/model", "./none", "../none"}) {
    const Outcome outcome = Call({"inspect", "--model", path});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_EQ(outcome.err, std::string("shiftrt: model ") + path + ": no such file or directory\n");
  }
  const Outcome unknown = Call({"inspect", "--model", "SmolLM2"});
  EXPECT_NE(unknown.err.find("no model is known by this name; known: smollm2-135m, "), std::string::npos)
      << unknown.err;
  EXPECT_EQ(unknown.err.find("qwen"), std::string::npos) << unknown.err;
  EXPECT_NE(Call({"pull", "--help"}).out.find("qwen2-1.5b"), std::string::npos);
}

}  // namespace
}  // namespace shiftrt

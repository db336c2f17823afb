// SPDX-License-Identifier: Apache-2.0
// shiftrt: the command line. Each command lives in a file of its own; this one dispatches and turns errors into
// statuses.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iterator>
#include <new>
#include <numeric>
#include <string>
#include <string_view>
#include <system_error>
#include <variant>
#include <vector>

#include "runtime/files.h"
#include "runtime/launcher.h"
#include "runtime/not_finite.h"
#include "runtime/printable.h"
#include "runtime/temporary_name.h"
#include "runtime/utf8.h"
#include "tools/cmd_compare.h"
#include "tools/color.h"
#include "tools/completion.h"
#include "tools/fields.h"
#include "tools/help.h"
#include "tools/options.h"
#include "tools/outputs.h"
#include "tools/standard_output.h"

namespace {

using shiftrt::Command;

using AddAlone = Command (*)(CLI::App&);
using AddShared = Command (*)(CLI::App&, const std::shared_ptr<shiftrt::Processes>&);

struct CommandRow {
  const char* name;
  const char* summary;
  std::variant<AddAlone, AddShared> add;  // a command of one process, or one that several may share
};
const CommandRow kCommands[] = {
    {"run", "prune a model, repair it and compare the variants", shiftrt::AddRun},
    {"sweep", "many settings from few passes: tables, charts, the paper's experiments", shiftrt::AddSweep},
    {"finetune", "train a pruned model further: LoRA, whole blocks, adapters, or a block in a run's place",
     shiftrt::AddFinetune},
    {"generate", "continue a prompt", shiftrt::AddGenerate},
    {"inspect", "sizes, layer scores by several criteria, adapters of a saved model", shiftrt::AddInspect},
    {"ppl", "perplexity of a text", shiftrt::AddPpl},
    {"eval", "zero-shot suites, with every variant on the same items", shiftrt::AddEval},
    {"compare", "replies of a model and its variants beside each other, and how far they part", shiftrt::AddCompare},
    {"export", "write a pruned or corrected model for other programs", shiftrt::AddExport},
    {"pull", "download a model or a data set of the Hugging Face hub", shiftrt::AddPull},
    {"tokenize", "token ids and pieces of a text, or the text of token ids", shiftrt::AddTokenize},
    {"dump", "write hidden states, block updates and logits as safetensors", shiftrt::AddDump},
    {"completion", "the script that completes commands, options and values in bash, zsh or fish",
     shiftrt::AddCompletion},
#ifdef SHIFTRT_HAVE_BENCH
    {"bench", "speed of kernels or of a whole model, next to the limits of the machine", shiftrt::AddBench},
#endif
};

constexpr int kFailed = 1, kWrongUsage = 2, kInterrupted = 130;

void OnSignal(int) { shiftrt::RequestInterrupt(); }

// A message may contain text of a file or a server; what controls a terminal is escaped.
int Fail(const char* what, int status) {
  constexpr size_t kMaxMessage = 16 << 10;
  const std::string name =
      shiftrt::ShowsColors(STDERR_FILENO) ? Painted("shiftrt:", shiftrt::Paint::kError) : "shiftrt:";
  std::fprintf(stderr, "%s %s\n", name.c_str(), shiftrt::PrintableLines(what, kMaxMessage).c_str());
  return status;
}

// Memory that is given back when there is none left. Ending takes some: values of JSON allocate a list when they are
// destroyed, where an error would abort the program, and a message is a text.
constexpr size_t kReserveBytes = size_t{4} << 20;
std::atomic<char*> reserve = nullptr;  // main() takes it

// Called when an allocation fails. The first time it gives the reserve back, asks for an orderly end, and returns: the
// allocation is tried again. If the reserve cannot help, or is used up, the allocation throws.
void OnNoMemory() {
  char* const held = reserve.exchange(nullptr);
  if (held == nullptr) throw std::bad_alloc();
  delete[] held;
  shiftrt::RequestInterrupt();
}

// OpenBLAS starts its threads before main(), and each looks for memory for ever if there is none. Under a limit on its
// memory the program therefore starts once more, and tells OpenBLAS to have one thread until it is asked for more
// (lapack::Threads, which makes sure of the memory first).
void StartAgainUnderALimit(char** argv) {
  rlimit memory{};
  const char* const threads = std::getenv("OPENBLAS_NUM_THREADS");
  if (::getrlimit(RLIMIT_AS, &memory) != 0 || memory.rlim_cur == RLIM_INFINITY) return;
  if ((threads != nullptr && std::string_view(threads) == "1") || ::setenv("OPENBLAS_NUM_THREADS", "1", 1) != 0) return;
  ::execv("/proc/self/exe", argv);
}

constexpr const char* kNoMemory =
    "out of memory: try a smaller model, fewer layers removed at once, or shorter samples";

std::terminate_handler usual_end = nullptr;  // main() takes it

// Some functions of the libraries allocate memory and promise not to throw: CLI11 when it looks for an option, a
// directory's iterator, values of JSON that are moved. Where there is no memory, such a function ends the program
// without its destructors. The error cannot always be asked for here, but the reserve is gone then.
[[noreturn]] void OnTerminate() {
  if (reserve != nullptr) usual_end();
  shiftrt::RemoveHeldTemporaries();
  std::fprintf(stderr, "shiftrt: %s\n", kNoMemory);
  ::_exit(kFailed);
}

// A page of a mapped file cannot be read: the file became shorter, or its disk fails.
extern "C" void OnBadPage(int) {
  constexpr std::string_view kWhat =
      "shiftrt: a file that is in use was cut short by another program, or cannot be read from its disk\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kWhat.data(), kWhat.size());
  shiftrt::RemoveHeldTemporaries();
  ::_exit(kFailed);
}

// Reports a failure once for all processes: the first one does it, or, if it does not answer, the one that failed.
int Fail(const char* what, int status, shiftrt::Processes& processes) {
  if (processes.failed()) return status;
  if (processes.first()) Fail(what, status);
  if (!processes.Fail(what) && !processes.first()) Fail(what, status);
  return status;
}

// The words of the command line; the program called shiftrt-eval is `shiftrt eval`.
std::vector<std::string> Words(int argc, char** argv) {
  std::vector<std::string> words(argv, argv + argc);
  if (std::filesystem::path(argv[0]).filename() == "shiftrt-eval") words.insert(words.begin() + 1, "eval");
  return words;
}

// The least number of letters to insert, to delete or to replace (Levenshtein, 1966).
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

// "; did you mean --lambda?", or "" if none of `known` is near.
std::string Proposal(const std::string& word, const std::vector<std::string>& known) {
  std::string nearest;
  size_t least = 1 + std::min<size_t>(3, word.size() / 2);
  for (const std::string& name : known)
    if (const size_t distance = EditDistance(word, name); distance < least) {
      least = distance;
      nearest = name;
    }
  return nearest.empty() ? "" : "; did you mean " + nearest + "?";
}

// The message for the first word that `command` does not take.
std::string Unexpected(const CLI::App& command) {
  const std::string word = command.remaining().front(), option = word.substr(0, word.find('='));
  std::vector<std::string> known;
  for (const CLI::Option* one : command.get_options())
    for (const std::string& name : one->get_lnames()) known.push_back("--" + name);
  return word[0] == '-' ? fmt::format("{} has no option {}{}", command.get_name(), option, Proposal(option, known))
                        : fmt::format("{} does not expect \"{}\"", command.get_name(), word);
}

bool IsCommand(std::string_view name) {
  return std::any_of(std::begin(kCommands), std::end(kCommands),
                     [&](const CommandRow& row) { return row.name == name; });
}

std::vector<std::string> CommandNames() {
  std::vector<std::string> names;
  for (const CommandRow& row : kCommands) names.emplace_back(row.name);
  return names;
}

// Checks that all processes run the same command line, and that its command shares its work between processes.
void CheckShared(const std::vector<std::string>& words, shiftrt::Processes& processes) {
  processes.CheckSame("version or command line",
                      fmt::format("{} {}", SHIFTRT_VERSION, fmt::join(words.begin() + 1, words.end(), " ")));
  for (const CommandRow& row : kCommands)
    if (words[1] == row.name && std::holds_alternative<AddAlone>(row.add))
      shiftrt::FailUsage("{} processes were started, and {} does not share its work: start one", processes.size(),
                         row.name);
}

int RunCommand(int argc, char** argv, const std::shared_ptr<shiftrt::Processes>& processes) {
  CLI::App app("shiftrt makes large language models shallower and repairs them without training.", "shiftrt");
  app.set_version_flag("--version", SHIFTRT_VERSION);
  app.require_subcommand(1);
  shiftrt::ShapeHelp(app);
  app.footer(
      "Examples:\n  shiftrt run --model demo --prune bi:0.25 --lra 64\n"
      "  shiftrt generate --model demo --prompt \"It is a truth\"\n  shiftrt COMMAND --help");
  std::vector<std::pair<CLI::App*, Command>> commands;
  for (const CommandRow& row : kCommands) {
    CLI::App* command = app.add_subcommand(row.name, row.summary);
    const AddShared* const shared = std::get_if<AddShared>(&row.add);
    commands.emplace_back(command, shared ? (*shared)(*command, processes) : std::get<AddAlone>(row.add)(*command));
    shiftrt::GroupOptions(*command);
  }
  const std::vector<std::string> words = Words(argc, argv);
  if (words.size() == 1) {
    std::fputs(app.help().c_str(), stdout);
    return kWrongUsage;
  }
  if (words.size() > 3 && words[1] == "completion" && words[2] == "--") {
    for (const shiftrt::Candidate& one : shiftrt::Complete(app, {words.begin() + 3, words.end()}))
      fmt::print("{}\t{}\t{}\n", one.word, one.group, one.summary);
    return 0;
  }
  const CLI::App* chosen = &app;
  try {
    if (!processes->alone()) CheckShared(words, *processes);
    // CLI11 would call a misspelt command a missing one.
    if (words.size() > 1 && words[1][0] != '-' && !IsCommand(words[1]))
      shiftrt::FailUsage("no command \"{}\"{}; see shiftrt --help", words[1], Proposal(words[1], CommandNames()));
    std::vector<const char*> arguments;
    arguments.reserve(words.size());
    for (const std::string& word : words) arguments.push_back(word.c_str());
    // Each process tries whether it can write its outputs, which must not happen at the same time.
    std::exception_ptr wrong;
    processes->InTurns([&] {
      try {
        app.parse(static_cast<int>(arguments.size()), arguments.data());
        for (const auto& [command, run] : commands)
          if (command->parsed() && shiftrt::CheckPaths(*command)) shiftrt::GoOnWithoutReader();
      } catch (const CLI::ParseError&) {
        wrong = std::current_exception();
      } catch (const shiftrt::UsageError&) {
        wrong = std::current_exception();
      }
    });
    if (wrong) std::rethrow_exception(wrong);
    for (const auto& [command, run] : commands) {
      if (!command->parsed()) continue;
      chosen = command;
      const int status = run();
      processes->Barrier();  // MPI would keep the cores of those busy that wait for the others at the end
      return status;
    }
    return kWrongUsage;
  } catch (const CLI::ExtrasError& e) {
    for (const auto& [command, run] : commands)
      if (command->parsed() && !command->remaining().empty())
        return Fail(Unexpected(*command).c_str(), kWrongUsage, *processes);
    return Fail(e.what(), kWrongUsage, *processes);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return processes->first() ? app.exit(e) : 0;  // --help or --version was asked for
    std::string command = "shiftrt";
    for (const CLI::App* parsed : app.get_subcommands()) command += " " + parsed->get_name();
    return Fail(fmt::format("{}; see `{} --help`", e.what(), command).c_str(), kWrongUsage, *processes);
  } catch (const shiftrt::PeerFailed&) {
    return kFailed;  // the error has been reported
  } catch (const shiftrt::Interrupted& e) {
    if (reserve == nullptr) return Fail(kNoMemory, kFailed, *processes);
    return Fail(e.what(), processes->failed() ? kFailed : kInterrupted, *processes);
  } catch (const shiftrt::UsageError& e) {
    return Fail(shiftrt::Message(e, *chosen).c_str(), kWrongUsage, *processes);
  } catch (const shiftrt::NotFinite& e) {
    return Fail(fmt::format("{}. --check-weights names a weight that is NaN or infinite", e.what()).c_str(), kFailed,
                *processes);
  } catch (const std::bad_alloc&) {
    return Fail(kNoMemory, kFailed, *processes);
  } catch (const std::system_error& e) {
    if (e.code() == std::errc::broken_pipe) return 0;           // whoever reads the output wants no more
    if (e.code() == std::errc::resource_unavailable_try_again)  // there is no memory for the stack of a thread
      return Fail(kNoMemory, kFailed, *processes);
    return Fail(e.what(), kFailed, *processes);
  } catch (const std::exception& e) {
    return Fail(e.what(), kFailed, *processes);
  }
}

// Records and JSON have the names of files. A name that they could not hold is refused before any work.
void RefuseInvalidUtf8(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (!shiftrt::IsValidUtf8(argv[i]))
      shiftrt::FailUsage("argument {}, \"{}\", is not valid UTF-8; a file can be given another name", i,
                         shiftrt::Printable(argv[i]));
}

}  // namespace

int main(int argc, char** argv) {
  StartAgainUnderALimit(argv);
  shiftrt::OccupyStandardStreams();
  std::signal(SIGINT, OnSignal);
  std::signal(SIGTERM, OnSignal);
  if (std::signal(SIGHUP, OnSignal) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);  // nohup asks to go on
  std::signal(SIGBUS, OnBadPage);
#ifdef SIGXFSZ
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit then fails the write, which is reported
#endif
  try {
    reserve = new char[kReserveBytes];
    std::set_new_handler(OnNoMemory);
    usual_end = std::set_terminate(OnTerminate);
    RefuseInvalidUtf8(argc, argv);
    const std::shared_ptr<shiftrt::Processes> processes = shiftrt::JoinProcesses();
    if (!processes->first() && std::freopen("/dev/null", "w", stdout) == nullptr) return kFailed;
    return shiftrt::FinishStandardOutput(RunCommand(argc, argv, processes), kFailed);
  } catch (const shiftrt::UsageError& e) {
    return Fail(e.what(), kWrongUsage);
  } catch (const std::bad_alloc&) {
    return Fail(kNoMemory, kFailed);
  } catch (const std::exception& e) {
    return Fail(e.what(), kFailed);
  }
}

// SPDX-License-Identifier: Apache-2.0
// Options that several commands share. Each command adds those that it heeds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "include/shiftrt/model.h"
#include "include/shiftrt/resources.h"
#include "runtime/context.h"
#include "runtime/processes.h"
#include "runtime/progress.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace shiftrt {

struct LoadOptions;

constexpr int kSplitByMemory = 0;

struct CommonOptions {
  CommonOptions() = default;
  // For a command whose work several processes may share. Only the first of them shows progress and writes files.
  explicit CommonOptions(std::shared_ptr<Processes> processes)
      : processes(std::move(processes)), quiet(!this->processes->first()) {}

  std::shared_ptr<Processes> processes = OneProcess();
  std::string model = "demo";
  std::string lora;  // a directory in PEFT's format, merged into the model; "": none
  std::string device = "auto";
  std::string dtype = "auto";
  bool expand = false;  // read quantised weights as bfloat16 unless --dtype names a type
  std::string products = "auto";
  std::string json;
  int threads = 0;  // 0: all cores
  int split = 1;    // over so many processes each, or kSplitByMemory
  uint64_t seed = 0;
  uint64_t memory = 0;  // 0: what is free
  bool quiet = false;
  bool offline = false;  // see PullMissingModel (tools/pulling.h)
  bool check_finite = false;
  bool merge_lora = true;  // as LoadOptions

  void AddModelTo(CLI::App& app);  // --model, --offline
  void AddTo(CLI::App& app);       // the same, --device, --dtype, --threads, --check-weights
  void AddSplitTo(CLI::App& app);  // --split, into this object
  // A command that cannot split a model says what to do instead where --split is given. --help does not show it.
  static void RefuseSplitIn(CLI::App& app, const std::string& instead);
  void AddLoraTo(CLI::App& app);
  void AddThreadsTo(CLI::App& app);  // --threads, --check-weights
  void AddQuietTo(CLI::App& app);
  void AddOutputTo(CLI::App& app);  // --quiet, --json
  void AddMemoryTo(CLI::App& app);  // for calibration sums
  void AddActivationMemoryTo(CLI::App& app);
  void AddSeedTo(CLI::App& app, const std::string& of);  // `of`: what the seed decides

  // Throws UsageError for --device cuda where there is no GPU, or fewer than processes. Those of one host divide its
  // GPUs, its cores and its memory, unless --threads and --memory say what each may take, and all use the instruction
  // set that the oldest CPU among them has.
  Resources MakeResources() const;
  Context MakeContext() const;  // the same, as the directories below api/ take it
  LoadOptions Loading() const;
  // Pulls what is not there. With --split each process opens its part; throws UsageError for numbers of processes that
  // are no multiple of it.
  LanguageModel OpenLanguageModel() const;
  std::unique_ptr<Progress> MakeProgress() const;
  // Writes the file that --json names, if it names one, and adds what each of several processes has done.
  void WriteJson(const nlohmann::json& result) const;
};

// Options that take a number above 0, or from 0 on.
CLI::Validator AboveZero();
CLI::Validator FromZero();
// Options that name a file or directory to write. Whether it can be written is checked when the command line is read,
// not after the work is done. It need not exist, and the check leaves nothing behind.
CLI::Validator FileOutput();
CLI::Validator DirectoryOutput();
// An option that names a journal, or with `suffix` an option whose journal has its name and this suffix. A file that is
// no journal is refused, because the command removes its journal at the end.
CLI::Validator JournalOutput(const std::string& suffix = "");

// Throws UsageError if the directory `save` has a model that must stay: the one that was opened under the name
// `opened`, the one that it was made from, or one that shiftrt has not saved. Called before the work.
void RefuseSavingOver(const LanguageModel& model, const std::string& opened, const std::filesystem::path& save);

// Ids separated by white space or commas. Throws UsageError for anything else.
std::vector<int32_t> ParseTokenIds(const std::string& text);

// A command: adds its options to `app` and returns what runs once they are parsed (an exit status).
using Command = std::function<int()>;
Command AddRun(CLI::App& app, const std::shared_ptr<Processes>& processes);
Command AddSweep(CLI::App& app, const std::shared_ptr<Processes>& processes);
Command AddFinetune(CLI::App& app, const std::shared_ptr<Processes>& processes);
Command AddGenerate(CLI::App& app, const std::shared_ptr<Processes>& processes);
Command AddInspect(CLI::App& app);
Command AddPpl(CLI::App& app, const std::shared_ptr<Processes>& processes);
Command AddEval(CLI::App& app, const std::shared_ptr<Processes>& processes);
Command AddTokenize(CLI::App& app);
Command AddDump(CLI::App& app);
Command AddExport(CLI::App& app);
Command AddPull(CLI::App& app);
Command AddCompletion(CLI::App& app);
#ifdef SHIFTRT_HAVE_BENCH
Command AddBench(CLI::App& app);
#endif

}  // namespace shiftrt

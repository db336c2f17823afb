// Options every command shares, and what they mean.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/model.h"
#include "runtime/context.h"
#include "runtime/progress.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace shiftrt {

struct CommonOptions {
  std::string model = "demo";
  std::string device = "auto";
  std::string dtype = "auto";
  std::string json;
  int threads = 0;  // 0: all cores
  uint64_t seed = 0;
  uint64_t memory = 0;  // 0: what is free
  bool quiet = false;
  bool check_finite = false;

  // Adds --model, --device, --dtype, --threads, --seed, --quiet, --check-weights and, with `with_json`, --json.
  void AddTo(CLI::App& app, bool with_json);
  // Adds --memory, for commands that calibrate.
  void AddMemoryTo(CLI::App& app);
  Context MakeContext() const;  // throws UsageError for --device cuda where there is no GPU
  Model Open() const;
  std::unique_ptr<Progress> MakeProgress() const;
  void WriteJson(const nlohmann::json& result) const;  // where --json names a file
};

// What an option names must be writable: found out when the command line is read, not after the work is done. The file
// or directory need not exist, and nothing is left of the trial.
CLI::Validator FileOutput();
CLI::Validator DirectoryOutput();

// Ids separated by white space or commas. Throws UsageError for anything else.
std::vector<int32_t> ParseTokenIds(const std::string& text);

// A command: adds its options to `app` and returns what runs once they are parsed (an exit status).
using Command = std::function<int()>;
Command AddRun(CLI::App& app);
Command AddSweep(CLI::App& app);
Command AddGenerate(CLI::App& app);
Command AddInspect(CLI::App& app);
Command AddPpl(CLI::App& app);
Command AddEval(CLI::App& app);
Command AddTokenize(CLI::App& app);
Command AddDump(CLI::App& app);
#ifdef SHIFTRT_HAVE_BENCH
Command AddBench(CLI::App& app);
#endif

}  // namespace shiftrt

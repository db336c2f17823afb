// SPDX-License-Identifier: Apache-2.0
#include "tools/splitting.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "models/model.h"
#include "runtime/check.h"
#include "runtime/cuda/cuda.h"
#include "runtime/host_memory.h"
#include "runtime/parse.h"
#include "tools/gpus.h"
#include "tools/table.h"

namespace shiftrt {

namespace {

// The memory that this process may take for weights: that of its GPU, or of its host if it uses none.
ProcessMemory FreeMemory(const CommonOptions& options, Processes& processes) {
  const std::string& host = processes.host(processes.rank());
  const std::vector<int> gpus = ChooseGpus(options.device, processes);
  if (gpus.empty()) return {host, AvailableMemory() / 4 * 3};
  return {fmt::format("GPU {} of {}", gpu::PciBusId(gpus.front()), host),
          gpu::QueryDevice(gpus.front()).free_bytes / 4 * 3};
}

// By the memory that is free. A quarter of it is left to activations, sums and other programs.
int64_t FreeMemorySplit(const CommonOptions& options, Processes& processes) {
  LoadOptions outline = options.Loading();
  outline.outline = true;
  outline.merge_lora = false;
  const Model model = OpenModel(options.model, outline);
  const Weights& weights = *model.weights;
  const ProcessMemory own = FreeMemory(options, processes);
  const bool on_host = own.host == processes.host(processes.rank());
  const bool mapped = on_host && !weights.stored.contains(weights.blocks.front().AnyDown().data);
  std::vector<ProcessMemory> memory;
  for (const auto& one : processes.Gather(Packer().PutText(own.host).Put(own.bytes).Take())) {
    Unpacker in(one);
    const std::string where = in.GetText();
    memory.push_back({where, in.Get<int64_t>()});
  }
  const DepthPlan all = DepthPlan::Original(weights.config.layers);
  // Quantised weights stay so in host memory. For a GPU they count as expanded, which some types are.
  const auto bytes = [&](const ModelShare& share) {
    return on_host ? WeightBytes(weights, all, share)
                   : WeightBytes(weights.config, all, share, ExpandedType(weights.embedding.dtype));
  };
  return ChooseSplit({weights.config, all, bytes, mapped}, memory);
}

}  // namespace

void CommonOptions::AddSplitTo(CLI::App& app) {
  const auto wrong = [](const std::string& text) -> std::string {
    int number = 0;
    return text == "auto" || (ParseNumber(text, &number) && number > 0) ? ""
                                                                        : "expected a number of processes, or auto";
  };
  const auto take = [this](const std::string& text) {
    if (text == "auto") {
      split = kSplitByMemory;
    } else {
      ParseNumber(text, &split);
    }
  };
  app.add_option_function<std::string>(
         "--split", take,
         "divide the blocks of the model among groups of N processes; mpirun starts a multiple of N. auto: the\n"
         "smallest N for which the hosts have memory, which is 1 if each has room for the whole model (docs/scale.md)")
      ->check(CLI::Validator(wrong, "N|auto"))
      ->default_str("1");
}

void CommonOptions::RefuseSplitIn(CLI::App& app, const std::string& instead) {
  const auto refuse = [why = app.get_name() + " needs the whole model in each process: " + instead](
                          const std::string&) { throw CLI::ValidationError("--split", why); };
  app.add_option_function<std::string>("--split", refuse)->group("");
}

void SplitModel(const CommonOptions& options, Processes& processes) {
  const int split =
      options.split == kSplitByMemory ? static_cast<int>(FreeMemorySplit(options, processes)) : options.split;
  if (processes.size() % split != 0)
    FailUsage("--split {0}: {1} process{2} started; start a multiple of {0}, such as mpirun -n {0} (docs/scale.md)",
              split, processes.size(), processes.alone() ? " was" : "es were");
  if (split > 1 && !options.lora.empty())
    FailUsage("--split {}: --lora changes weights of every block; merge it into a model first (shiftrt export)", split);
  processes.Split(split);
}

void ReportShares(const Weights& weights, Processes& processes, bool quiet) {
  if (!weights.split()) return;
  const DepthPlan all = DepthPlan::Original(weights.config.layers);
  std::string parts;
  for (const ModelShare& share : weights.shares) {
    const int64_t bytes = WeightBytes(weights, all, share);
    const std::string blocks = share.begin == share.end ? "head" : fmt::format("{}-{}", share.begin, share.end - 1);
    parts += fmt::format("{}{} ({})", parts.empty() ? "" : ", ", blocks, Scaled(static_cast<double>(bytes), "B"));
    if (&share != &weights.shares[weights.share]) continue;
    processes.work.first_block = share.begin;
    processes.work.end_block = share.end;
    processes.work.weight_bytes = bytes;
  }
  if (!quiet) fmt::print(stderr, "blocks by process: {}\n", parts);
}

}  // namespace shiftrt

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include "shiftrt/error.h"
#include "shiftrt/pull.h"
#include "tools/help.h"
#include "tools/options.h"
#include "tools/pulling.h"
#include "tools/table.h"

namespace shiftrt {

namespace {

struct PullCommand {
  PullSettings settings;
  bool dry_run = false, quiet = false;
};

void PrintFiles(const PulledRepository& repository) {
  Table table({"file", "size", "checksum"});
  for (const PulledRepository::File& file : repository.files)
    table.Add({file.path, Scaled(static_cast<double>(file.size), "B"), file.checksum.substr(0, 12)});
  fmt::print("{}\n{}", Announcement(repository), table.Text());
  for (const std::string& why : repository.damaged) fmt::print("damaged: {}\n", why);
}

int Run(const PullCommand& command) {
  if (command.dry_run) {
    for (const PulledRepository& repository : LookUp(command.settings)) PrintFiles(repository);
    return 0;
  }
  DownloadProgress show;  // shows the repository that is being pulled
  PullObserver observer;
  observer.begin = [&](const PulledRepository& repository) {
    Announce(repository, command.quiet);
    show = ShowDownload(command.quiet);
  };
  observer.progress = [&](std::span<const FileProgress> files) { show(files); };
  observer.done = [](const PulledRepository& repository) { fmt::print("{}\n", repository.directory.string()); };
  try {
    Pull(command.settings, observer);
  } catch (const Interrupted&) {
    if (show) SayWhatIsKept();
    throw;
  }
  return 0;
}

}  // namespace

Command AddPull(CLI::App& app) {
  auto options = std::make_shared<PullCommand>();
  app.add_option("name", options->settings.name, "ORG/NAME, ORG/NAME@REVISION, or a known name such as qwen2-1.5b")
      ->required();
  app.add_flag("--dataset", options->settings.dataset,
               "NAME is a data set: ORG/NAME, or one of " + fmt::format("{}", fmt::join(KnownDatasetNames(), ", ")));
  app.add_option("--revision", options->settings.revision, "branch, tag, commit or refs/pr/N (default: main)");
  app.add_option(
      "--include", options->settings.include,
      "pull the files that match this pattern, such as \"*.gguf\" (repeatable; default: what a model needs,\n"
      "or all of a data set)");
  app.add_option("--exclude", options->settings.exclude, "but not those that match this pattern (repeatable)");
  app.add_flag("--dry-run", options->dry_run, "list the files and their sizes, and pull nothing");
  app.add_flag("--verify", options->settings.verify,
               "also compare the checksums of the files that are there; without it, only their sizes");
  app.add_flag("--quiet", options->quiet, "nothing on standard error");
  app.footer(
      "Known models:\n" + InLines(KnownModelNames()) +
      "\n\nFiles go to the cache that Python's huggingface_hub uses. The last line of the output is the directory.\n"
      "Environment: HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE (docs/pull.md)\n\n"
      "Examples:\n  shiftrt pull qwen2-1.5b\n  shiftrt pull HuggingFaceTB/SmolLM2-135M --dry-run\n"
      "  shiftrt pull lmsys/vicuna-7b-v1.5 --revision refs/pr/2\n"
      "  shiftrt pull --dataset paper7\n"
      "  shiftrt pull --dataset Salesforce/wikitext --include \"wikitext-2-raw-v1/test*\"\n"
      "  HF_TOKEN=hf_... shiftrt pull llama-2-7b");
  return [options] { return Run(*options); };
}

}  // namespace shiftrt

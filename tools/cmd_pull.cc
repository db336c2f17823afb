// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "eval/task.h"
#include "hub/names.h"
#include "runtime/check.h"
#include "text/documents.h"
#include "tools/options.h"
#include "tools/pulling.h"
#include "tools/table.h"

namespace shiftrt {

namespace {

struct PullOptions {
  std::string name, revision;
  std::vector<std::string> include, exclude;
  bool dataset = false, dry_run = false, quiet = false, verify = false;
};

// Of data sets.
std::string KnownNames() {
  std::string names;
  for (const KnownText& text : KnownTexts()) names += fmt::format("{}, ", text.name);
  for (const Task& task : Tasks()) names += task.name + ", ";
  return names + "paper7, all";
}

Repository RepositoryOf(const PullOptions& options) {
  auto repository =
      options.dataset ? ParseRepository(options.name, RepositoryType::kDataset) : RepositoryOfModel(options.name);
  if (!repository && options.dataset)
    FailUsage("{} is no data set of the hub: expected ORG/NAME, ORG/NAME@REVISION, or {}", options.name, KnownNames());
  if (!repository) {
    std::string known;
    for (const KnownModel& model : KnownModels()) known += fmt::format("{}{}", known.empty() ? "" : ", ", model.name);
    FailUsage("{} is neither a repository of the hub (ORG/NAME) nor a known name ({})", options.name, known);
  }
  if (!options.revision.empty()) {
    if (!IsRevision(options.revision)) FailUsage("--revision {}: not a branch, tag or commit", options.revision);
    repository->revision = options.revision;
  }
  return *repository;
}

void PrintFiles(const PullPlan& plan) {
  Table table({"file", "size", "checksum"});
  for (const RemoteFile& file : plan.files)
    table.Add({file.path, Scaled(static_cast<double>(file.size), "B"), file.etag.substr(0, 12)});
  fmt::print("{}\n{}", Announcement(plan), table.Text());
  for (const PullPlan::Damaged& damaged : plan.damaged) fmt::print("damaged: {}\n", damaged.why);
}

std::vector<PullRequest> RequestsOf(const PullOptions& options) {
  if (options.dataset && options.revision.empty() && options.include.empty() && options.exclude.empty())
    if (std::vector<PullRequest> known = KnownDataset(options.name); !known.empty()) {
      for (PullRequest& request : known) request.verify = options.verify;
      return known;
    }
  PullRequest request;
  request.repository = RepositoryOf(options);
  request.include = options.include;
  request.exclude = options.exclude;
  request.verify = options.verify;
  return {std::move(request)};
}

int Run(const PullOptions& options) {
  const std::vector<PullRequest> requests = RequestsOf(options);
  if (HubIsOffline()) Fail("HF_HUB_OFFLINE is set, so that nothing is pulled: unset it and give the command again");
  HubClient hub(HubSettings::FromEnvironment());
  std::vector<PullPlan> plans;
  for (const PullRequest& request : requests) plans.push_back(PlanPull(hub, request));
  for (const PullPlan& plan : plans) {
    if (options.dry_run)
      PrintFiles(plan);
    else
      fmt::print("{}\n", AnnounceAndPull(hub, plan, options.quiet).string());
  }
  return 0;
}

}  // namespace

Command AddPull(CLI::App& app) {
  auto options = std::make_shared<PullOptions>();
  app.add_option("name", options->name, "ORG/NAME, ORG/NAME@REVISION, or a known name such as qwen2-1.5b")->required();
  app.add_flag("--dataset", options->dataset, "NAME is a data set: ORG/NAME, or one of " + KnownNames());
  app.add_option("--revision", options->revision, "branch, tag, commit or refs/pr/N (default: main)");
  app.add_option(
      "--include", options->include,
      "pull the files that match this pattern, such as \"*.gguf\" (repeatable; default: what a model needs,\n"
      "or all of a data set)");
  app.add_option("--exclude", options->exclude, "but not those that match this pattern (repeatable)");
  app.add_flag("--dry-run", options->dry_run, "list the files and their sizes, and pull nothing");
  app.add_flag("--verify", options->verify,
               "also compare the checksums of the files that are there; without it, only their sizes");
  app.add_flag("--quiet", options->quiet, "nothing on standard error");
  app.footer(
      "Files go to the cache that Python's huggingface_hub uses. The last line of the output is the directory.\n"
      "Environment: HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE (docs/pull.md)\n\n"
      "Examples:\n  shiftrt pull qwen2-1.5b\n  shiftrt pull HuggingFaceTB/SmolLM2-135M --dry-run\n"
      "  shiftrt pull lmsys/vicuna-7b-v1.5 --revision refs/pr/2\n"
      "  shiftrt pull --dataset paper7\n"
      "  shiftrt pull --dataset Salesforce/wikitext --include \"wikitext-2-raw-v1/test*\"\n"
      "  HF_TOKEN=hf_... shiftrt pull llama-2-7b");
  return [options] { return Run(*options); };
}

}  // namespace shiftrt

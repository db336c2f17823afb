// SPDX-License-Identifier: Apache-2.0
#include "api/pull.h"

#include <algorithm>
#include <utility>

#include "eval/task.h"
#include "hub/names.h"
#include "hub/settings.h"
#include "include/shiftrt/pull.h"
#include "runtime/check.h"
#include "text/documents.h"

namespace shiftrt {

namespace {

PullRequest RequestOf(const KnownText& text) {
  PullRequest request;
  request.repository = *ParseRepository(text.repository, RepositoryType::kDataset);
  request.files = {std::string(text.hub_file)};
  return request;
}

Repository RepositoryOf(const PullSettings& settings) {
  auto repository =
      settings.dataset ? ParseRepository(settings.name, RepositoryType::kDataset) : RepositoryOfModel(settings.name);
  if (!repository && settings.dataset && !KnownDataset(settings.name).empty())
    FailUsage(
        "{} is a known name, whose files and revision are fixed; name its repository as ORG/NAME to choose others",
        settings.name);
  if (!repository && settings.dataset)
    FailUsage("{} is no data set of the hub: expected ORG/NAME, ORG/NAME@REVISION, or {}", settings.name,
              fmt::join(KnownDatasetNames(), ", "));
  if (!repository)
    FailUsage("{} is neither a repository of the hub (ORG/NAME) nor a known name ({})", settings.name,
              fmt::join(KnownModelNames(), ", "));
  if (!settings.revision.empty()) {
    if (!IsRevision(settings.revision))
      FailUsage(Field("revision"), "{} is not a branch, tag or commit", settings.revision);
    repository->revision = settings.revision;
  }
  return *repository;
}

std::vector<PullRequest> RequestsOf(const PullSettings& settings) {
  if (settings.dataset && settings.revision.empty() && settings.include.empty() && settings.exclude.empty())
    if (std::vector<PullRequest> known = KnownDataset(settings.name); !known.empty()) {
      for (PullRequest& request : known) request.verify = settings.verify;
      return known;
    }
  PullRequest request;
  request.repository = RepositoryOf(settings);
  request.include = settings.include;
  request.exclude = settings.exclude;
  request.verify = settings.verify;
  return {std::move(request)};
}

// All plans are made before the first download, so that an error comes before time is spent.
std::vector<PullPlan> PlansOf(HubClient& hub, const std::vector<PullRequest>& requests) {
  std::vector<PullPlan> plans;
  plans.reserve(requests.size());
  for (const PullRequest& request : requests) plans.push_back(PlanPull(hub, request));
  return plans;
}

HubClient OpenHub() {
  if (HubIsOffline()) Fail("HF_HUB_OFFLINE is set, so that nothing is pulled: unset it and give the command again");
  return HubClient(HubSettings::FromEnvironment());
}

}  // namespace

PullRequest RequestOf(const Task& task, TaskRows rows) {
  HubFiles files = HubFilesOf(task, rows);
  PullRequest request;
  request.repository = std::move(files.repository);
  request.include = {std::move(files.pattern)};
  return request;
}

std::vector<PullRequest> KnownDataset(const std::string& name) {
  if (const KnownText* text = FindKnownText(name)) return {RequestOf(*text)};
  std::vector<PullRequest> requests;
  const bool is_task = name == "paper7" || name == "small4" || name == "all" ||
                       std::any_of(Tasks().begin(), Tasks().end(), [&](const Task& task) { return task.name == name; });
  if (is_task)
    for (const Task* task : ParseTasks(name)) requests.push_back(RequestOf(*task, TaskRows::kItems));
  return requests;
}

std::vector<std::string> KnownModelNames() {
  std::vector<std::string> names;
  names.reserve(KnownModels().size());
  for (const KnownModel& model : KnownModels()) names.emplace_back(model.name);
  return names;
}

std::vector<std::string> KnownDatasetNames() {
  std::vector<std::string> names;
  for (const KnownText& text : KnownTexts()) names.emplace_back(text.name);
  for (const Task& task : Tasks()) names.push_back(task.name);
  names.insert(names.end(), {"paper7", "small4", "all"});
  return names;
}

std::vector<PulledRepository> LookUp(const PullSettings& settings) {
  const std::vector<PullRequest> requests = RequestsOf(settings);
  HubClient hub = OpenHub();
  const std::vector<PullPlan> plans = PlansOf(hub, requests);
  return {plans.begin(), plans.end()};
}

std::vector<PulledRepository> Pull(const PullSettings& settings, const PullObserver& observer) {
  const std::vector<PullRequest> requests = RequestsOf(settings);
  HubClient hub = OpenHub();
  const std::vector<PullPlan> plans = PlansOf(hub, requests);
  for (const PullPlan& plan : plans) {
    if (observer.begin) observer.begin(plan);
    Pull(
        hub, plan, observer.progress ? observer.progress : [](std::span<const FileProgress>) {});
    if (observer.done) observer.done(plan);
  }
  return {plans.begin(), plans.end()};
}

}  // namespace shiftrt

// SPDX-License-Identifier: Apache-2.0
#include "api/kept_fit.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "api/repair.h"
#include "models/adapted.h"
#include "models/result_key.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/json.h"
#include "runtime/processes.h"
#include "shift/recipe_fields.h"
#include "types/provenance.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;

// Names that nobody else gives to files of theirs: what has them is removed when another fit is kept.
constexpr const char *kReport = "shiftrt-fit.json", *kCorrected = "shiftrt-fit-corrected",
                     *kMerged = "shiftrt-fit-merged", *kKey = "key";

// Throws Error for a fit of another key, or one that is not whole.
ShiftResult Load(const ShiftJob& job, const fs::path& directory, const std::string& key) {
  const fs::path report = directory / kReport;
  const nlohmann::json json = ParseJson(ReadFile(report), report.string());
  const Provenance made = ReadProvenance(json);
  Check(made.repair && made.calibration && json.value(kKey, "") == key,
        "{}: it is not of this model and these settings", report.string());
  Check(!made.repair->selection.removed.empty(), "{}: it names no layer that was removed", report.string());
  ShiftResult result;
  static_cast<RepairReport&>(result) = *made.repair;
  result.calibration = made.calibration->source;
  const Weights& weights = *job.model.weights;
  result.pruned = DepthPlan::Pruned(job.layers(), result.selection.removed);
  result.corrected = OpenSavedPlan(directory / kCorrected, weights);
  if (Exists(directory / kMerged)) result.merged = OpenSavedPlan(directory / kMerged, weights);
  return result;
}

// True for the name of a file or directory that is kept here: by this code, or by the Python package as the checkpoint
// of a training, whose name begins with 16 digits of a hash. Both may have left a temporary file of such a name.
bool IsKept(std::string_view name) {
  constexpr size_t kDigits = 16;
  name = name.substr(0, name.rfind(".tmp-shiftrt-"));
  const size_t digits = std::min(name.find_first_not_of("0123456789abcdef"), name.size());
  return name == kReport || name == kCorrected || name == kMerged ||
         (digits == kDigits && name.substr(kDigits) == ".checkpoint");
}

// Throws UsageError for a directory that holds something else: what is in it is removed when a fit is kept.
void CheckOwn(const fs::path& directory) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(directory, none))
    if (const std::string name = entry.path().filename().string(); !IsKept(name))
      FailUsage(Field("keep"), "{} holds {}, which is no part of a kept fit; name a directory of its own",
                directory.string(), name);
}

void RemoveKept(const fs::path& directory) {
  std::error_code ignored;
  std::vector<fs::path> kept;
  for (const auto& entry : fs::directory_iterator(directory, ignored))
    if (IsKept(entry.path().filename().string())) kept.push_back(entry.path());
  for (const fs::path& path : kept) fs::remove_all(path, ignored);
}

// The report comes last, so that a directory with it is whole.
void Save(const ShiftJob& job, const Recipe& recipe, const ShiftResult& result, const fs::path& directory,
          const std::string& key) {
  RemoveKept(directory);
  SaveAdapted(job.model, result.corrected, {}, /*with_weights=*/false, directory / kCorrected);
  if (result.merged) SaveAdapted(job.model, *result.merged, {}, /*with_weights=*/false, directory / kMerged);
  nlohmann::json json = ProvenanceJson(ProvenanceOf(job.model.name, recipe, job.calibration, result));
  json[kKey] = key;
  WriteFile(directory / kReport, json.dump() + "\n");
}

}  // namespace

std::string FitKey(const ShiftJob& job, const Recipe& recipe) {
  Recipe resolved = recipe;  // a model that is split may be fitted in another mode
  resolved.mode = ModeOf(recipe, job.model.weights->split());
  WorkKey key = ResultKey("fit", job.context, job.model, job.model.plan);
  key.Add("directory", fs::absolute(job.model.directory))
      .Add("text_hash", job.calibration.hash)
      .Add("source", job.calibration.source)
      .AddRows(RecipeFields(), resolved)
      .Add("benefit", static_cast<int>(recipe.benefit))
      .Add("gram.save", recipe.gram.save)
      .Add("gram.all_layers", recipe.gram.all_layers);
  for (const fs::path& file : recipe.gram.load) key.AddFile("gram.load", file);
  return key.Hash();
}

ShiftResult KeptFit::Get(const ShiftJob& job, const Recipe& recipe) {
  if (directory.empty()) return Shift(job, recipe);
  Processes& processes = *job.context.processes;
  const bool first = processes.first();
  const auto say = [&](const std::string& message) {
    if (first && tell) tell(message);
  };
  CheckOwn(directory);
  const std::string key = FitKey(job, recipe);
  const bool wants_sums = !recipe.gram.save.empty() && !Exists(recipe.gram.save);  // a fit also writes it
  if (processes.OfFirst(!wants_sums && Exists(directory / kReport))) {
    std::optional<ShiftResult> earlier;
    try {
      earlier = Load(job, directory, key);
    } catch (const Interrupted&) {
      throw;
    } catch (const std::exception& error) {
      say(fmt::format("what an interrupted command left cannot be used: {}", error.what()));
    }
    if (!processes.Any(!earlier)) {
      kept = first;
      say(fmt::format("the selection and the fit come from {}, where an interrupted command left them",
                      directory.string()));
      return std::move(*earlier);
    }
  }
  ShiftResult result = Shift(job, recipe);
  if (!first) return result;
  try {
    Save(job, recipe, result, directory, key);
    kept = true;
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {  // such as a full disk: the command can do without
    say(fmt::format("the fit cannot be kept for the case of an interruption: {}", error.what()));
    RemoveKept(directory);
  }
  return result;
}

}  // namespace shiftrt

// SPDX-License-Identifier: Apache-2.0
#include "tools/kept_fit.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "models/adapted.h"
#include "runtime/files.h"
#include "runtime/json.h"
#include "runtime/processes.h"
#include "tools/cache.h"
#include "tools/shift_output.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char *kReport = "fit.json", *kCorrected = "corrected", *kMerged = "merged";

// Everything that the selection and the fit depend on.
std::string KeyOf(const ShiftJob& job, const RecipeOptions& recipe, const ShiftOptions& options) {
  const Weights& weights = *job.model.weights;
  const Calibration mode = ModeOf(options, weights.split());  // a model that is split may be fitted in another one
  std::string text = fmt::format("{} {} {} {} {} {} {} {} {}", SHIFTRT_VERSION,
                                 fs::absolute(job.model.directory).string(), weights.Fingerprint(),
                                 Name(weights.embedding.dtype), job.context.device == Device::kCuda ? "cuda" : "",
                                 options.seed, job.calibration.hash, Name(mode), recipe.Text());
  for (const std::string& file : recipe.load_gram)
    text += fmt::format(" {} {}", fs::file_size(file), fs::last_write_time(file).time_since_epoch().count());
  return HashHex(text);
}

}  // namespace

KeptFit::KeptFit(const ShiftJob& job, const RecipeOptions& recipe, const ShiftOptions& options)
    : processes_(*job.context.processes) {
  for (const std::string& file : recipe.load_gram)
    if (!fs::exists(file)) return;  // Shift() says what is wrong with it
  directory_ = CachePath("run-" + KeyOf(job, recipe, options));
}

KeptFit::~KeptFit() {
  if (kept_)
    std::fprintf(stderr, "shiftrt: the selection and the fit are kept in %s; the same command continues from there\n",
                 directory_.c_str());
}

ShiftResult KeptFit::Get(const ShiftJob& job, const ShiftOptions& options) {
  const bool wants_sums = !options.gram.save.empty() && !fs::exists(options.gram.save);  // which a fit also writes
  const bool there = !directory_.empty() && !wants_sums && fs::exists(directory_ / kReport);
  if (processes_.OfFirst(there)) {
    std::optional<ShiftResult> earlier = Earlier(job);
    if (!processes_.Any(!earlier)) {
      kept_ = processes_.first();
      if (kept_)
        std::fprintf(stderr,
                     "shiftrt: the selection and the fit come from %s, where an interrupted command left them\n",
                     directory_.c_str());
      return std::move(*earlier);
    }
  }
  ShiftResult result = Shift(job, options);
  if (!directory_.empty() && processes_.first()) Save(job, result);
  return result;
}

std::optional<ShiftResult> KeptFit::Earlier(const ShiftJob& job) const {
  try {
    return Load(job);
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "shiftrt: what an interrupted command left cannot be used: %s\n", error.what());
    return {};
  }
}

// The report comes last, so that a directory with it is whole.
void KeptFit::Save(const ShiftJob& job, const ShiftResult& result) {
  try {
    fs::remove_all(directory_);
    SaveAdapted(job.model, result.corrected, Json::object(), /*with_weights=*/false, directory_ / kCorrected);
    if (result.merged)
      SaveAdapted(job.model, *result.merged, Json::object(), /*with_weights=*/false, directory_ / kMerged);
    WriteFile(directory_ / kReport, ShiftJson(result, job.calibration).dump() + "\n");
    kept_ = true;
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {  // a full disk, say: the command can do without
    std::fprintf(stderr, "shiftrt: the fit cannot be kept for the case of an interruption: %s\n", error.what());
    std::error_code ignored;
    fs::remove_all(directory_, ignored);
  }
}

ShiftResult KeptFit::Load(const ShiftJob& job) const {
  const fs::path report = directory_ / kReport;
  ShiftResult result = ShiftFromJson(ParseJson(ReadFile(report), report.string()));
  const Weights& weights = *job.model.weights;
  result.pruned = DepthPlan::Pruned(job.layers(), result.selection.removed);
  result.corrected = OpenSavedPlan(directory_ / kCorrected, weights);
  if (fs::exists(directory_ / kMerged)) result.merged = OpenSavedPlan(directory_ / kMerged, weights);
  return result;
}

void KeptFit::Done() {
  kept_ = false;
  std::error_code ignored;
  if (!directory_.empty() && processes_.first()) fs::remove_all(directory_, ignored);
}

}  // namespace shiftrt

// SPDX-License-Identifier: Apache-2.0
/// \file
/// The main job in one call: choose layers, remove them, and repair the model without training.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shiftrt/compare.h"
#include "shiftrt/model.h"
#include "shiftrt/progress.h"
#include "shiftrt/recipe.h"
#include "shiftrt/resources.h"

namespace shiftrt {

/// The result of Repair().
struct RepairResult {
  RepairReport report;                  ///< what was removed and how well the fits explain it
  LanguageModel pruned;                 ///< without the removed layers and without a repair
  LanguageModel corrected;              ///< with the repair
  std::optional<LanguageModel> merged;  ///< with neighbouring adapters merged, where the recipe asks for it
  /// The original model and those above, as far as the recipe makes them (VariantNames()); the last one has all of it.
  std::vector<ModelVariant> variants;
};

/// Chooses layers, collects sums over the calibration text and fits the repair. The models of the result share the
/// weights of `model`, and LanguageModel::MadeBy() of each says how it was made.
/// \param model an original model, or a pruned and repaired one, which is then the original of this repair
/// \param recipe what to remove and how to repair
/// \param resources what the job may use of the machine
/// \param progress receives reports; null: none are made
/// \param keep a directory of its own in which the selection and the fit are kept, so that the same call takes them
///     from there if what follows is interrupted; another recipe, model or text replaces them. Remove it in the end.
///     Empty: nothing is kept
/// \return the models
/// \throws UsageError with the name of a field for a setting that makes no sense; Error for calibration text that is
///     missing, malformed or too short, and for numerical failure; OutOfMemory; Interrupted after RequestInterrupt()
RepairResult Repair(const LanguageModel& model, const Recipe& recipe = {}, const Resources& resources = {},
                    Progress* progress = nullptr, const std::filesystem::path& keep = {});

/// \param model as for Repair()
/// \param recipe what to remove and how to repair it
/// \return the name of the correction; where the recipe has none, the one that this model gets
std::string CorrectionName(const LanguageModel& model, const Recipe& recipe);

/// \param recipe what to remove and how to repair
/// \return names of RepairResult::variants: "original", "pruned", the name of the correction, and "merged"
/// \throws UsageError for an unknown correction
std::vector<std::string> VariantNames(const Recipe& recipe);

/// The parts of a model that a repair adds or changes.
struct RepairEffects {
  bool adapters = false;         ///< adapters stand in the place of removed blocks
  bool changes_blocks = false;   ///< kept blocks get weights of their own
  bool normed_adapters = false;  ///< its adapters read the normed stream
};
/// \param recipe what to remove and how to repair it
/// \return what Repair() does by it; the gate may drop all of it
/// \throws UsageError for a correction that does not exist
RepairEffects EffectsOf(const Recipe& recipe);

/// Checks what Repair() would refuse before it reads the calibration text.
/// \param model as for Repair()
/// \param recipe what to remove and how to repair
/// \throws UsageError with the name of a field
void CheckRecipe(const LanguageModel& model, const Recipe& recipe);

/// With these settings RepairJob::Run() keeps the selection and the fit, in case the work that follows is interrupted.
struct KeepSettings {
  std::filesystem::path directory = {};  ///< as `keep` of Repair()
  /// Receives what a user should know about it, as words that continue "shiftrt: "; in the first process alone.
  std::function<void(const std::string& message)> tell = {};
};

/// Repair() in two steps: one that finds what is wrong with the settings and the text, and one that takes long.
class RepairJob {
 public:
  /// Checks the recipe and reads the calibration text. The arguments are those of Repair().
  /// \param model as for Repair()
  /// \param recipe what to remove and how to repair
  /// \param resources what the job may use of the machine
  /// \throws UsageError, Error as Repair() does before it selects
  RepairJob(const LanguageModel& model, const Recipe& recipe, const Resources& resources = {});
  ~RepairJob();
  RepairJob(const RepairJob&) = delete;
  RepairJob& operator=(const RepairJob&) = delete;

  /// \return the calibration text; without a source if none is read
  const CalibrationReport& Text() const;
  /// \return a line for people: how many documents and tokens of the text were read, fitted and held out
  std::string Accounting() const;
  /// \return the samples of the text that are not fitted, without tokens if there are none
  HeldOutText HeldOut() const;
  /// \return the name of the correction; the one that a recipe without a name gets
  std::string Correction() const;
  /// \return why a recipe without a name got "lra" and not "joint"; empty if it did not
  std::string WhyCorrection() const;
  /// \return the calibration mode; that for which kAuto stands
  Calibration Mode() const;
  /// \return why kAuto does not stand for the usual mode of the correction; empty if it does
  std::string WhyMode() const;
  /// \return a name for the selection and the fit, the same for jobs with the same result alone
  /// \throws Error if a file of GramFiles::load is missing
  std::string Key() const;

  /// Selects, calibrates and fits.
  /// \param progress receives reports; null: none are made
  /// \param keep where the selection and the fit are kept
  /// \param kept receives whether they are there now; null: nothing is received
  /// \return the models
  /// \throws Error for numerical failure; OutOfMemory; Interrupted after RequestInterrupt()
  RepairResult Run(Progress* progress = nullptr, const KeepSettings& keep = {}, bool* kept = nullptr) const;
  /// Chooses layers by other criteria, on the same text and with the same seed.
  /// \param specs criteria and amounts; those of criteria that read text are left out if the job has none
  /// \param progress receives reports; null: none are made
  /// \return what each chooses, in their order
  /// \throws UsageError as Repair() does; OutOfMemory; Interrupted after RequestInterrupt()
  std::vector<Selection> Select(std::span<const PruneSpec> specs, Progress* progress = nullptr) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Rounds the matrices of a model, its head and its embedding table to types of fewer bits.
/// \param model the model, whose weights may be rounded already: matrices that have their type stay as they are
/// \param spec the types; `when` is not read
/// \param text the text that the rounding reads; none is read with Rounding::kNearest
/// \param seed of the choice of samples
/// \param resources what the rounding may use of the machine; a CPU
/// \param progress receives reports; null: none are made
/// \return the rounded model, whose provenance says what the rounding did
/// \throws UsageError for a mixture that does not exist, a GPU and a model that is split over processes; Error for
///     weights that the types cannot hold; Interrupted
LanguageModel Quantise(const LanguageModel& model, const QuantiseSpec& spec, const CalibrationSpec& text = {},
                       uint64_t seed = 0, const Resources& resources = {}, Progress* progress = nullptr);

}  // namespace shiftrt
